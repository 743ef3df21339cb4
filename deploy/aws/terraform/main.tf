data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  parameters = "arn:${data.aws_partition.current.partition}:ssm:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:parameter${var.parameter_path}"
  bucket     = "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}"
  groups = {
    allocator = aws_security_group.allocator.id
    relay     = aws_security_group.host.id
    host      = aws_security_group.host.id
  }
  # Relays and hosts share a role: neither may read the allocator's key.
  profiles = {
    allocator = "allocator"
    relay     = "host"
    host      = "host"
  }
}

resource "aws_security_group" "host" {
  name_prefix = "ratewright-host-"
  description = "Ratewright hosts and relays"
  vpc_id      = var.vpc_id
}

resource "aws_security_group" "allocator" {
  name_prefix = "ratewright-allocator-"
  description = "Ratewright allocator"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_egress_rule" "any" {
  for_each = {
    allocator = aws_security_group.allocator.id
    host      = aws_security_group.host.id
  }
  security_group_id = each.value
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_ingress_rule" "allocator" {
  for_each = {
    quic = [var.quic_port, var.quic_port]
    udp  = [var.udp_port, var.udp_port + var.shards - 1]
  }
  security_group_id            = aws_security_group.allocator.id
  referenced_security_group_id = aws_security_group.host.id
  ip_protocol                  = "udp"
  from_port                    = each.value[0]
  to_port                      = each.value[1]
}

resource "aws_vpc_security_group_ingress_rule" "relay" {
  security_group_id            = aws_security_group.host.id
  referenced_security_group_id = aws_security_group.host.id
  ip_protocol                  = "udp"
  from_port                    = var.quic_port
  to_port                      = var.quic_port
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "rights" {
  for_each = toset(["allocator", "host"])

  statement {
    actions   = ["s3:GetObject"]
    resources = ["${local.bucket}/*"]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [local.bucket]
  }
  statement {
    actions = ["ssm:GetParameter"]
    resources = each.key == "allocator" ? [
      "${local.parameters}/ca", "${local.parameters}/ratewright-allocator/*"
    ] : ["${local.parameters}/ca", "${local.parameters}/relay"]
  }
  # A key is for the one instance that its tag names: an instance's session is ROLE-ID:INSTANCE-ID.
  dynamic "statement" {
    for_each = each.key == "host" ? [1] : []
    content {
      actions   = ["ssm:GetParameter"]
      resources = ["${local.parameters}/*"]
      condition {
        test     = "StringLike"
        variable = "aws:userid"
        values   = ["*:$${aws:ResourceTag/ratewright-instance}"]
      }
    }
  }
}

resource "aws_iam_role" "this" {
  for_each           = toset(["allocator", "host"])
  name_prefix        = "ratewright-${each.key}-"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "this" {
  for_each = toset(["allocator", "host"])
  role     = aws_iam_role.this[each.key].id
  policy   = data.aws_iam_policy_document.rights[each.key].json
}

resource "aws_iam_instance_profile" "this" {
  for_each    = toset(["allocator", "host"])
  name_prefix = "ratewright-${each.key}-"
  role        = aws_iam_role.this[each.key].name
}

resource "aws_launch_template" "this" {
  for_each      = toset(["allocator", "relay", "host"])
  name_prefix   = "ratewright-${each.key}-"
  image_id      = var.image_id
  instance_type = var.instance_types[each.key]

  iam_instance_profile {
    arn = aws_iam_instance_profile.this[local.profiles[each.key]].arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  network_interfaces {
    device_index       = 0
    security_groups    = [local.groups[each.key]]
    private_ip_address = each.key == "allocator" ? var.allocator_address : null
  }

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "ratewright-${each.key}" }
  }

  user_data = base64encode(templatefile("${path.module}/user-data.yaml.tftpl", {
    role              = each.key
    packages          = var.packages
    parameter_path    = var.parameter_path
    topology_uri      = var.topology_uri
    allocator_address = var.allocator_address
    quic_port         = var.quic_port
    udp_port          = var.udp_port
    shards            = var.shards
    setup_uri         = var.setup_uri
  }))
}

resource "aws_autoscaling_group" "this" {
  for_each            = merge(var.counts, { allocator = 1 })
  name_prefix         = "ratewright-${each.key}-"
  min_size            = each.key == "allocator" ? 1 : 0
  max_size            = each.value
  desired_capacity    = each.value
  vpc_zone_identifier = each.key == "allocator" ? [var.allocator_subnet_id] : var.host_subnet_ids

  launch_template {
    id      = aws_launch_template.this[each.key].id
    version = aws_launch_template.this[each.key].latest_version
  }
}

resource "aws_cloudwatch_metric_alarm" "allocator" {
  alarm_name          = "ratewright-allocator-${aws_autoscaling_group.this["allocator"].name}"
  alarm_description   = "The allocator's instance fails its status checks; hosts run plain TCP"
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.this["allocator"].name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 2
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
}

resource "aws_cloudwatch_metric_alarm" "allocator_cpu" {
  alarm_name          = "ratewright-allocator-cpu-${aws_autoscaling_group.this["allocator"].name}"
  alarm_description   = "The allocator's cores are busy; rates may come late"
  namespace           = "AWS/EC2"
  metric_name         = "CPUUtilization"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.this["allocator"].name }
  statistic           = "Average"
  period              = 300
  evaluation_periods  = 2
  threshold           = 80
  comparison_operator = "GreaterThanThreshold"
  alarm_actions       = var.alarm_topic_arns
}
