output "allocator_endpoint" {
  description = "Address of the allocator for hosts' configurations"
  value       = "${var.allocator_address}:${var.quic_port}"
}

output "host_group_name" {
  description = "Auto-scaling group of the hosts"
  value       = aws_autoscaling_group.this["host"].name
}
