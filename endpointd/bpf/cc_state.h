/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * State of the congestion control: per socket (`rw_flow`, `rw_sock_storage`), per slot of the table
 * (`rw_slot`), and global (`rw_shared`). `src/backend/struct_ops/table.rs` holds the same layouts.
 */
#ifndef RATEWRIGHT_CC_STATE_H
#define RATEWRIGHT_CC_STATE_H

#include "kernel.h"
#include "flow.h"
#include "names.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/* Set before loading. The first one names the layout of these constants: later daemons read them. */
const volatile __u32 settings_layout = 0;
const volatile __u64 min_flowlet_bytes = 15000;
const volatile __u32 max_flows = 1;
/* The most that a fast flow sends at once, in time at its rate. */
const volatile __u64 max_burst_ns = 500000;
const volatile __u32 netns_inum = 0;
/* The program of the daemon before has lifted its maxima (`rw_lift`). */
const volatile bool lifted = false;
/* Sockets of other network namespaces than the daemon's own may be paced, too. */
const volatile bool has_pods = false;
const volatile char cc_name[RW_TCP_CA_NAME_MAX] = "rw";
/* Congestion control that sockets without a remembered one get back. */
const volatile char default_cc[RW_TCP_CA_NAME_MAX] = "cubic";
/* Remembered for the daemon that follows a killed one; the program does not use them. */
const volatile __u32 tso_rtt_log = 0;
const volatile __u32 min_tso_segs = 0;

/* Global words, which user space maps. */
struct rw_shared {
	/* Written by user space: rates of this generation are valid until here at least. */
	__u64 expires_ns;
	/* Written by user space: rates of other generations are void. */
	__u64 generation;
	/* Slots from here on were never used. */
	__u64 next_fresh;
	/* Slots in use. */
	__u64 connections;
	__u64 table_full;
	__u64 events_lost;
	__u64 adopted;
	__u64 expired;
	/* Sockets that could not be switched by the running pass. */
	__u64 switch_failed;
	__u64 windows_bounded;
	/* The kernel's key of this congestion control's name. */
	__u64 cc_key;
	/* Written by user space: counts its passes over the sockets. */
	__u64 pass;
	/* Sockets that left this congestion control under a maximum of ours: a pass lifts it. */
	__u64 left_capped;
	/* Written by user space: no rate is in force, and flows' use counts without one. */
	__u64 observing;
} shared;

/* Generation that no rate has. */
#define NO_GENERATION (~0ULL)

#define SLOT_FREE 0
#define SLOT_ACTIVE 1
#define SLOT_IDLE 2

/*
 * A slot's `owner` word names its user: (use count << 32) | state. Both sides change it by
 * compare-and-swap only, so that a slot is never freed twice or taken from its next user.
 */
struct rw_slot {
	/* Written by user space. The rate is on the wire; `tag` is (use count << 32) | generation. */
	__u64 rate_bytes_per_s;
	__u64 expires_ns;
	__u64 tag;
	/* Written by user space: (use count << 32) | 1 when it has ended the flowlet. */
	__u64 ended;
	/* Set by user space to (use count << 32) | 1, and taken back by the LIMITED that it asks for. */
	__u64 watched;
	__u64 owner;
	/* The kernel's own from here on: for how long the flow could have sent and did not (below 0:
	 * sent ahead). */
	__s64 behind_ns;
	/* Up to when, and up to which `bytes_sent`, `behind_ns` counts. */
	__u64 counted_ns;
	__u64 counted_bytes;
	/* The rate on the wire that is in force. */
	__u64 wire_bytes_per_s;
	/* For user space: bytes on the wire, bytes acknowledged, when the rate last held the flow back. */
	__u64 sent_bytes;
	__u64 acked_bytes;
	__u64 limited_ns;
	/* The newest pass that met the socket, or during which the slot was taken. */
	__u64 met_pass;
	/* Since when the flowlet rests without an IDLE; 0: it does not. */
	__u64 rests_ns;
	/* When IDLE was last sent. */
	__u64 idle_ns;
};
_Static_assert(sizeof(struct rw_slot) == 128, "two cache lines");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot);
} slots SEC(".maps");

/* Slots that were used and given back. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, __u32);
} free_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

/* Inodes of those namespaces; written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8);
} pods SEC(".maps");

/* Seldom-used state of a socket, in its socket storage. */
struct rw_sock_storage {
	/* First write since the last flowlet ended; 0: none. */
	__u64 first_write_ns;
	/* Of the running flowlet. */
	__u64 start_ns;
	/* The congestion control that take-over found. */
	char previous_cc[RW_TCP_CA_NAME_MAX];
	/* The socket left this congestion control with our maximum (0: without) in place of its own. */
	__u32 left_max;
	__u32 left_own_max;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct rw_sock_storage);
} cold SEC(".maps");

/* Something was written that is not yet acknowledged, and the flow makes progress. */
#define FLOW_ACTIVE 1
/* A rate is in force. */
#define FLOW_LEASED 2
/* We turned pacing on. */
#define FLOW_PACING_SET 4
/* A rate was applied since START: FIRST_PACED is done with. */
#define FLOW_FIRST_PACED 8
/* The flow table was full for this flowlet. */
#define FLOW_FULL 16
/* Unmanaged: the peer is on this host, or the socket in a namespace that is not the daemon's to pace. */
#define FLOW_UNMANAGED 32
/* The receiver's window is closed, or the peer does not answer: `start_seq` is where that began. */
#define FLOW_STALLED 64

/*
 * Hot state of a socket. It lives behind cubic's own in the congestion control's private area;
 * user space checks that cubic's ends before PRIV_OFFSET.
 */
struct rw_flow {
	/* Slot + 1; 0: none. */
	__u32 slot;
	__u32 use_count;
	__u32 start_seq;
	__u16 mss;
	__u8 flags;
	/* Tick of the last failed report: try again in the next one. */
	__u8 failed_tick;
	/* The maximum that cap() set in bytes/s (0: none), and the application's own (~0: none). */
	__u32 set_max;
	__u32 own_max;
	/* The window at the last hook, and the packets delivered by then. */
	__u32 seen_cwnd;
	__u32 seen_delivered;
	/* At most NO_MAXIMUM. */
	__u32 payload_bytes_per_s;
	/* FLOW_LAYOUT once this state was initialised. */
	__u32 layout;
};

/* Names the layout of `rw_flow`, and changes with it: daemons of other versions leave sockets behind. */
#define FLOW_LAYOUT 0x52570002

#define PRIV_OFFSET 64
#define PRIV_SIZE 104
_Static_assert(PRIV_OFFSET + sizeof(struct rw_flow) <= PRIV_SIZE, "the private area is full");

#define NSEC_PER_SEC 1000000000ULL
#define USEC_PER_SEC 1000000ULL
#define ETHERNET_HEADER 14
#define NO_MAXIMUM (~0U)

static __always_inline struct rw_flow *flow_of(struct tcp_sock *tp)
{
	return (struct rw_flow *)((char *)tp->inet_conn.icsk_ca_priv + PRIV_OFFSET);
}

/* Whether this state was initialised, by a program that had the same layout. */
static __always_inline bool is_met(const struct rw_flow *flow)
{
	return flow->layout == FLOW_LAYOUT;
}

static __always_inline __u64 load(const __u64 *word)
{
	return *(const volatile __u64 *)word;
}

static __always_inline __u64 owner_word(__u32 use_count, __u32 state)
{
	return ((__u64)use_count << 32) | state;
}

static __always_inline bool swap_owner(struct rw_slot *slot, __u64 old, __u64 new)
{
	return __sync_val_compare_and_swap(&slot->owner, old, new) == old;
}

static __always_inline struct rw_slot *slot_of(const struct rw_flow *flow)
{
	__u32 index = flow->slot - 1;

	return bpf_map_lookup_elem(&slots, &index);
}

static __always_inline bool is_mapped_v4(const __be32 words[4])
{
	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

static __always_inline bool is_v6(struct sock *sk)
{
	return sk->__sk_common.skc_family == RW_AF_INET6 &&
	       !is_mapped_v4(sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32);
}

static __always_inline void put_v4(__u8 *to, __be32 address)
{
	__u32 *words = (__u32 *)to;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = address;
}

static __always_inline void put_v6(__u8 *to, const __be32 from[4])
{
	__u32 *words = (__u32 *)to;

	words[0] = from[0];
	words[1] = from[1];
	words[2] = from[2];
	words[3] = from[3];
}

/* Bytes that a full segment has on the wire besides its payload. */
static __always_inline __u32 header_bytes(struct tcp_sock *tp)
{
	return ETHERNET_HEADER + (is_v6((struct sock *)tp) ? 40 : 20) + tp->tcp_header_len;
}

#endif /* RATEWRIGHT_CC_STATE_H */
