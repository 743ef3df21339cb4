variable "vpc_id" {
  description = "VPC of allocator and hosts"
  type        = string
}

variable "allocator_subnet_id" {
  description = "Subnet of the allocator"
  type        = string
}

variable "allocator_address" {
  description = "Private IPv4 address of the allocator, free in its subnet"
  type        = string
}

variable "host_subnet_ids" {
  description = "Subnets of hosts and relays"
  type        = list(string)
}

variable "image_id" {
  description = "Machine image with the AWS CLI"
  type        = string
}

variable "instance_types" {
  description = "Instance type of each role"
  type        = map(string)
  default = {
    allocator = "c7i.xlarge"
    relay     = "c7i.xlarge"
    host      = "m6i.4xlarge"
  }
}

variable "counts" {
  description = "Hosts and relays"
  type        = map(number)
  default = {
    relay = 0
    host  = 2
  }
}

variable "bucket" {
  description = "Bucket with the setup script, the topology file and, if they come from S3, the packages"
  type        = string
}

variable "setup_uri" {
  description = "s3:// address of ratewright-ec2-setup.sh"
  type        = string
}

variable "topology_uri" {
  description = "s3:// address of the topology file"
  type        = string
}

variable "packages" {
  description = "image, repository, or s3://BUCKET/PREFIX/"
  type        = string
  default     = "image"
}

variable "parameter_path" {
  description = "SSM path of certificates and keys"
  type        = string
  default     = "/ratewright"

  validation {
    condition     = can(regex("^(/[A-Za-z0-9_.-]+)+$", var.parameter_path))
    error_message = "The path begins with a slash and does not end with one."
  }
}

variable "quic_port" {
  description = "UDP port of QUIC"
  type        = number
  default     = 7600
}

variable "udp_port" {
  description = "First UDP port of sealed datagrams"
  type        = number
  default     = 7601
}

variable "shards" {
  description = "UDP workers of the allocator; each has a port"
  type        = number
  default     = 1
}

variable "alarm_topic_arns" {
  description = "SNS topics of alarms"
  type        = list(string)
  default     = []
}
