// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0
//
// Path choice of a leaf switch in the lab: which spine a packet from a host takes.
//
// Attached to the ingress of the leaf's host ports. Computes the same hash of the 5-tuple as
// ratewright_topology::ecmp::flow_hash, takes it modulo the number of spines, and leaves the
// spine's mark on the packet; the namespace's `ip rule`s turn the mark into a route. The
// allocator's model of paths is thereby true for real packets.
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_HEADER 14
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define WORDS 10

// Set before loading.
const volatile __u32 hash_seed = 0;
const volatile __u32 symmetric = 0;
const volatile __u32 spines = 1;
const volatile __u32 mark_base = 0x100;

// Addresses as four words each, IPv4 mapped into IPv6, in host order.
struct tuple {
	__u32 src[4];
	__u32 dst[4];
	__u16 src_port;
	__u16 dst_port;
	__u32 protocol;
};

static __always_inline int parse(struct __sk_buff *skb, struct tuple *t)
{
	__u32 offset;
	__be16 ports[2] = {};
	__u16 ethertype = bpf_ntohs((__be16)skb->protocol);

	if (ethertype == ETHERTYPE_IPV4) {
		__u8 first, protocol;
		__be32 addresses[2];
		__be16 fragment;

		if (bpf_skb_load_bytes(skb, ETH_HEADER, &first, 1) ||
		    bpf_skb_load_bytes(skb, ETH_HEADER + 6, &fragment, 2) ||
		    bpf_skb_load_bytes(skb, ETH_HEADER + 9, &protocol, 1) ||
		    bpf_skb_load_bytes(skb, ETH_HEADER + 12, addresses, 8))
			return -1;
		t->src[0] = t->src[1] = t->dst[0] = t->dst[1] = 0;
		t->src[2] = t->dst[2] = 0xffff;
		t->src[3] = bpf_ntohl(addresses[0]);
		t->dst[3] = bpf_ntohl(addresses[1]);
		t->protocol = protocol;
		offset = ETH_HEADER + (first & 0x0f) * 4;
		// A fragment has no ports to be trusted: all of a datagram's parts take one way.
		if (fragment & bpf_htons(0x3fff))
			offset = 0;
	} else if (ethertype == ETHERTYPE_IPV6) {
		__be32 addresses[8];
		__u8 next;

		if (bpf_skb_load_bytes(skb, ETH_HEADER + 6, &next, 1) ||
		    bpf_skb_load_bytes(skb, ETH_HEADER + 8, addresses, 32))
			return -1;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			t->src[i] = bpf_ntohl(addresses[i]);
			t->dst[i] = bpf_ntohl(addresses[4 + i]);
		}
		t->protocol = next;
		offset = ETH_HEADER + 40;
	} else {
		return -1;
	}
	if (offset && (t->protocol == PROTOCOL_TCP || t->protocol == PROTOCOL_UDP) &&
	    bpf_skb_load_bytes(skb, offset, ports, 4))
		return -1;
	t->src_port = bpf_ntohs(ports[0]);
	t->dst_port = bpf_ntohs(ports[1]);
	return 0;
}

// Whether (dst, dst_port) sorts before (src, src_port): address words first, then the port.
static __always_inline int must_swap(const struct tuple *t)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (t->dst[i] != t->src[i])
			return t->dst[i] < t->src[i];
	}
	return t->dst_port < t->src_port;
}

static __always_inline __u32 flow_hash(const struct tuple *t)
{
	int swap = symmetric && must_swap(t);
	__u32 words[WORDS];
	__u32 h = hash_seed;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		words[i] = swap ? t->dst[i] : t->src[i];
		words[4 + i] = swap ? t->src[i] : t->dst[i];
	}
	words[8] = swap ? ((__u32)t->dst_port << 16) | t->src_port : ((__u32)t->src_port << 16) | t->dst_port;
	words[9] = t->protocol;
#pragma unroll
	for (int i = 0; i < WORDS; i++) {
		h ^= words[i];
		h *= 0x9E3779B1;
		h ^= h >> 15;
	}
	h ^= h >> 13;
	h *= 0x85EBCA6B;
	h ^= h >> 16;
	return h;
}

SEC("tc")
int choose_spine(struct __sk_buff *skb)
{
	struct tuple t = {};
	__u32 h;

	if (parse(skb, &t) || !spines)
		return 0; // TC_ACT_OK: the main table decides
	h = flow_hash(&t);
	skb->cb[0] = h; // read by the test that compares this with its Rust twin
	skb->mark = mark_base + h % spines;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
