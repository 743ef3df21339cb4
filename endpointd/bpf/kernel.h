/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The few kernel types that the programs touch, each with only the members in use. Member offsets
 * are relocated against the running kernel when a program is loaded (CO-RE), so neither a
 * vmlinux.h nor this machine's BTF is needed to build.
 */
#ifndef RATEWRIGHT_KERNEL_H
#define RATEWRIGHT_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>

typedef _Bool bool;
#define true 1
#define false 0

#define RW_AF_INET 2
#define RW_AF_INET6 10
#define RW_SOL_SOCKET 1
#define RW_SOL_TCP 6
#define RW_SO_MAX_PACING_RATE 47

/* tcp_states.h */
#define RW_TCP_CLOSE 7
#define RW_TCP_LISTEN 10

/* net/sock.h */
#define RW_SK_PACING_NONE 0

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

typedef struct {
	int counter;
} atomic_t;

typedef struct refcount_struct {
	atomic_t refs;
} refcount_t;

struct sock {
	struct sock_common __sk_common;
	__u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	__u32 sk_mark;
	struct sock_cgroup_data sk_cgrp_data;
	/* What tells use and stalls. */
	refcount_t sk_wmem_alloc;
};

struct ipv6_pinfo {
	__u8 tclass;
};

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	__u8 tos;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u8 icsk_retransmits;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u16 tcp_header_len;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u32 data_segs_out;
	__u32 write_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 snd_wnd;
	__u32 srtt_us;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 sacked_out;
	__u32 lost_out;
	/* The newest delivery rate: so many segments in this time. */
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u64 tcp_wstamp_ns;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

#endif /* RATEWRIGHT_KERNEL_H */
