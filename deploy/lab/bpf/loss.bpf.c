// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0
//
// A lossy link of the lab: drops frames by chance, each by itself.
//
// Attached to the egress of a switch's port, before its queue: what it drops never waited there.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Set before loading: of 2^32 frames so many are dropped.
const volatile __u32 threshold = 0;

SEC("tc")
int drop_by_chance(struct __sk_buff *skb)
{
	return bpf_get_prandom_u32() < threshold ? 2 /* TC_ACT_SHOT */ : 0 /* TC_ACT_OK */;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
