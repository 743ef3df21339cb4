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
#define RW_TCP_CONGESTION 13
#define RW_TCP_CA_NAME_MAX 16

/* tcp_states.h */
#define RW_TCP_ESTABLISHED 1
#define RW_TCP_CLOSE 7
#define RW_TCP_LISTEN 10

/* net/tcp.h */
#define RW_TCP_CONG_NON_RESTRICTED 1

/* net/sock.h */
#define RW_SK_PACING_NONE 0
#define RW_SK_PACING_NEEDED 1
#define RW_SK_PACING_FQ 2

enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
	CA_EVENT_ECN_NO_CE,
	CA_EVENT_ECN_IS_CE,
};

enum tcp_ca_state {
	TCP_CA_Open,
	TCP_CA_Disorder,
	TCP_CA_CWR,
	TCP_CA_Recovery,
	TCP_CA_Loss,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	struct {
		__s64 counter;
	} skc_cookie;
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

struct socket;

struct sock {
	struct sock_common __sk_common;
	/* None after the application has closed it. */
	struct socket *sk_socket;
	__u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	unsigned int sk_gso_max_size;
	__u16 sk_gso_max_segs;
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
	__be16 inet_sport;
	__u8 tos;
};

struct tcp_congestion_ops;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u8 icsk_ca_state : 5, icsk_ca_initialized : 1, icsk_ca_setsockopt : 1;
	__u8 icsk_retransmits;
	__u64 icsk_ca_priv[13];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u32 snd_cwnd_cnt;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
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
	__u32 delivered;
	__u64 tcp_clock_cache;
	__u64 tcp_wstamp_ns;
};

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
	__u32 in_flight;
};

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event ev);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*min_tso_segs)(struct sock *sk);
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[RW_TCP_CA_NAME_MAX];
	__u32 key;
	__u32 flags;
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	/* Linux 7.1 and later: what was CA_EVENT_TX_START. */
	void (*cwnd_event_tx_start)(struct sock *sk);
};

/* The congestion control's private state of cubic, net/ipv4/tcp_cubic.c: only its size matters. */
struct bictcp {
	__u32 cnt;
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
