/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A TCP congestion control that is the kernel's cubic until user space grants a rate, paces at that
 * rate while its lease lasts, and is cubic again, from that rate, when the lease runs out
 * (flowtune §6, fault-tolerance).
 *
 * Flowlets (flowtune §1): one begins with the first transmission after an empty pipe and ends when
 * everything written was acknowledged. It is reported once it is larger than a mouse; only then
 * does the connection take a slot of the flow table, and it gives the slot back when user space has
 * ended the flowlet or the socket closes.
 *
 * Pacing: `min_tso_segs` runs at the head of every transmission, ahead of the kernel's own use of
 * `sk_pacing_rate` (TSO size, small queues, pacing clock). Writing the rate there is enough, takes
 * effect with the next segment and leaves the application's SO_MAX_PACING_RATE alone.
 *
 * A slot's `owner` word names who has it: (use count << 32) | state. Both sides change it by
 * compare-and-swap only, so that a slot is never freed twice or taken from its next user.
 */
#include "kernel.h"
#include "flow.h"
#include "names.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The kernel's cubic. */
extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* Set before loading. */
const volatile __u64 min_flowlet_bytes = 15000;
const volatile __u32 max_flows = 1;
const volatile __u32 netns_inum = 0;
const volatile char cc_name[RW_TCP_CA_NAME_MAX] = "rw";
/* What sockets without a remembered congestion control go back to. */
const volatile char default_cc[RW_TCP_CA_NAME_MAX] = "cubic";
/* Only remembered here, for the daemon that comes after one which was killed. */
const volatile __u32 tso_rtt_log = 0;

/* Shared with user space, which maps it. */
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
} shared;

#define SLOT_FREE 0
#define SLOT_ACTIVE 1
#define SLOT_IDLE 2

struct rw_slot {
	/* Written by user space. The rate is on the wire; `tag` is (use count << 32) | generation. */
	__u64 rate_bytes_per_s;
	__u64 expires_ns;
	__u64 tag;
	/* Written by user space: (use count << 32) | 1 when it has ended the flowlet. */
	__u64 ended;
	__u64 owner;
	/* The kernel's own: for how long the flow could have sent and did not (below 0: sent ahead). */
	__s64 behind_ns;
	/* Up to when, and up to which `bytes_sent`, `behind_ns` counts. */
	__u64 counted_ns;
	__u64 counted_bytes;
};

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

/* What is seldom needed of a socket. */
struct rw_cold {
	/* First write since the last flowlet ended; 0: none. */
	__u64 first_write_ns;
	/* The congestion control that take-over found. */
	char previous_cc[RW_TCP_CA_NAME_MAX];
	/* The maximum that bound_pacing() set, and the application's own that it stands for. */
	__u64 set_max;
	__u64 own_max;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct rw_cold);
} cold SEC(".maps");

/* Something was written that is not yet acknowledged. */
#define FLOW_ACTIVE 1
/* A rate is in force. */
#define FLOW_LEASED 2
/* We turned pacing on. */
#define FLOW_PACING_SET 4
/* A rate was applied since START: FIRST_PACED is done with. */
#define FLOW_FIRST_PACED 8
/* The flow table was full for this flowlet. */
#define FLOW_FULL 16
/* Not ours: the peer is on this host, or the socket in another network namespace. */
#define FLOW_ALIEN 32

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
	__u64 start_ns;
	__u64 wire_bytes_per_s;
	__u64 payload_bytes_per_s;
};

#define PRIV_OFFSET 64
#define PRIV_SIZE 104
_Static_assert(PRIV_OFFSET + sizeof(struct rw_flow) <= PRIV_SIZE, "the private area is full");

#define NSEC_PER_SEC 1000000000ULL
#define USEC_PER_SEC 1000000ULL
/* Ticks of about 17 ms. */
#define TICK_SHIFT 24
#define ETHERNET_HEADER 14
/* RFC 6928's initial window: what any connection may have in flight. */
#define MIN_CWND 10
#define MAX_CWND 1000000
/* Host scheduling delays of this size must not leave the link idle. */
#define CWND_JITTER_US 1000
/* Below this, TSO bursts of two segments would be longer than 2 ms. */
#define ONE_SEGMENT_BYTES_PER_S 1500000
/*
 * The kernel's pacing forgets what a late timer cost once that is more than half a burst. A flow
 * makes up for at most 2^20 ns (1 ms) of its rate. All flows of a link together may be late at once,
 * where one processor serves them: what they make up for has to fit into a shallow buffer.
 *
 * How fast depends on the largest burst that the device takes from one timer. Where that is more
 * than 2^-12 s of the rate, half of it is credit for timers that are late by 122 us: such flows make up
 * within 2^23 ns, with an eighth more at most. Where it is less (64 KiB take 52 us at 10 Gbit/s; a
 * device without TSO takes single segments), timers that are 20 us late (on a guest) or 30 to 100 us
 * (on a core that sleeps) cost whole bursts, and what is due has to leave before the core sleeps again:
 * the rate is raised by as many times as bursts are owed, to CATCH_UP_TIMES as much at most. In either
 * case a flow sends within any time t no more than its rate allows in t + 2^20 ns, and a burst.
 */
#define BEHIND_MAX_NS (1LL << 20)
#define CATCH_UP_SHIFT 23
#define CATCH_UP_MOST_SHIFT 3
#define SMALL_BURST_SHIFT 12
#define CATCH_UP_TIMES 16
/* One full segment in about a third of a second: the longest that a raise can have to wait. */
#define MIN_PAYLOAD_BYTES_PER_S 4096

static __always_inline struct rw_flow *flow_of(struct tcp_sock *tp)
{
	return (struct rw_flow *)((char *)tp->inet_conn.icsk_ca_priv + PRIV_OFFSET);
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

/* Whether both ends are on this host: such traffic is on no link. */
static __always_inline bool is_local(struct sock *sk)
{
	if (is_v6(sk)) {
		const __be32 *to = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32;
		const __be32 *from = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32;

		if (!to[0] && !to[1] && !to[2] && to[3] == bpf_htonl(1))
			return true;
		return to[0] == from[0] && to[1] == from[1] && to[2] == from[2] && to[3] == from[3];
	}
	return (bpf_ntohl(sk->__sk_common.skc_daddr) >> 24) == 127 ||
	       sk->__sk_common.skc_daddr == sk->__sk_common.skc_rcv_saddr;
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

/*
 * Now and then the kernel (seen on Linux 6.18, in softirqs that interrupt a sender, on busy
 * processors) runs none of these programs for a millisecond or two. TCP then paces at what cubic's
 * window allows, and bursts of a megabyte were seen. While a rate is in force the socket's own
 * maximum therefore stands an eighth above the rate: with the next acknowledgement the kernel goes
 * back to that by itself, from whatever catch_up() had asked for, too.
 * The application's own maximum is remembered, still counts, and comes back with plain TCP.
 */
static __noinline void bound_pacing(struct tcp_sock *tp, __u64 most)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_cold *rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	__u64 present = sk->sk_max_pacing_rate;
	__u32 value;

	if (!rare)
		return;
	/* Not ours: the application's. */
	if (!rare->set_max || present != rare->set_max)
		rare->own_max = present;
	/* The option has 32 bits here, and all of them set mean "none". */
	if (most >= ~0U || most > rare->own_max)
		most = rare->own_max;
	if (most != ~0UL && most >= ~0U)
		return;
	rare->set_max = most;
	value = most;
	if (most != present)
		bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &value, sizeof(value));
}

/* The application's own maximum in bytes/s; ~0: none. */
static __noinline __u64 own_pacing_max(struct tcp_sock *tp)
{
	struct rw_cold *rare = bpf_sk_storage_get(&cold, tp, NULL, 0);
	__u64 present = ((struct sock *)tp)->sk_max_pacing_rate;

	return rare && rare->set_max && present == rare->set_max ? rare->own_max : present;
}

static __noinline void release_pacing(struct tcp_sock *tp)
{
	struct rw_cold *rare = bpf_sk_storage_get(&cold, tp, NULL, 0);
	__u32 value;

	if (!rare || !rare->set_max)
		return;
	value = rare->own_max < ~0U ? rare->own_max : ~0U;
	if (((struct sock *)tp)->sk_max_pacing_rate == rare->set_max)
		bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &value, sizeof(value));
	rare->set_max = 0;
}

/* Sends an event to user space; false: the ring was full. */
static __noinline bool emit(struct tcp_sock *tp, __u32 slot, __u32 use_count, __u32 kind,
			    __u64 value)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&shared.events_lost, 1);
		return false;
	}
	event->at_ns = bpf_ktime_get_ns();
	event->value = value;
	event->slot = slot;
	event->use_count = use_count;
	event->kind = kind;
	if (kind == RW_EVENT_START) {
		struct inet_sock *inet = (struct inet_sock *)tp;

		if (is_v6(sk)) {
			put_v6(event->src_addr, sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32);
			put_v6(event->dst_addr, sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32);
			event->dscp = inet->pinet6->tclass >> 2;
		} else {
			put_v4(event->src_addr, sk->__sk_common.skc_rcv_saddr);
			put_v4(event->dst_addr, sk->__sk_common.skc_daddr);
			event->dscp = inet->tos >> 2;
		}
		event->src_port = bpf_ntohs(inet->inet_sport);
		event->dst_port = bpf_ntohs(sk->__sk_common.skc_dport);
		event->mark = sk->sk_mark;
		event->cgroup_id = sk->sk_cgrp_data.cgroup->kn->id;
	}
	bpf_ringbuf_submit(event, 0);
	return true;
}

/* After `owner` was changed to the next use count and FREE. */
static __always_inline void give_back(__u32 index)
{
	__sync_fetch_and_add(&shared.connections, -1);
	bpf_map_push_elem(&free_slots, &index, BPF_ANY);
}

/* Takes a slot and reports the flowlet. */
static __noinline void report(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);
	__u8 tick = tp->tcp_clock_cache >> TICK_SHIFT;
	struct rw_slot *slot;
	__u32 index, use_count;

	if (flow->failed_tick == tick)
		return;
	if (bpf_map_pop_elem(&free_slots, &index)) {
		index = max_flows;
		if (load(&shared.next_fresh) < max_flows)
			index = __sync_fetch_and_add(&shared.next_fresh, 1);
	}
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot) {
		if (!(flow->flags & FLOW_FULL))
			__sync_fetch_and_add(&shared.table_full, 1);
		flow->flags |= FLOW_FULL;
		flow->failed_tick = tick;
		return;
	}
	use_count = load(&slot->owner) >> 32;
	*(volatile __u64 *)&slot->owner = owner_word(use_count, SLOT_ACTIVE);
	__sync_fetch_and_add(&shared.connections, 1);
	if (!emit(tp, index, use_count, RW_EVENT_START, own_pacing_max(tp))) {
		*(volatile __u64 *)&slot->owner = owner_word(use_count, SLOT_FREE);
		give_back(index);
		flow->failed_tick = tick;
		return;
	}
	flow->slot = index + 1;
	flow->use_count = use_count;
	flow->flags &= ~(FLOW_FIRST_PACED | FLOW_FULL);
}

static __always_inline void report_if_large(struct tcp_sock *tp, struct rw_flow *flow)
{
	if ((flow->flags & (FLOW_ACTIVE | FLOW_ALIEN)) == FLOW_ACTIVE && !flow->slot &&
	    tp->write_seq - flow->start_seq >= min_flowlet_bytes)
		report(tp);
}

/* `bytes_per_s` over `us` microseconds in segments, within [MIN_CWND, MAX_CWND]. */
static __always_inline __u32 segments(__u64 bytes_per_s, __u64 us, __u32 mss)
{
	__u64 count = bytes_per_s * us / USEC_PER_SEC / (mss ? mss : 1);

	if (count < MIN_CWND)
		return MIN_CWND;
	return count > MAX_CWND ? MAX_CWND : count;
}

/*
 * What these programs return does not always reach TCP: on Linux 6.18 with the SRSO mitigation, a
 * word of stale stack has been seen in place of what rw_ssthresh() and rw_undo_cwnd() had returned,
 * and a window of 10^8 segments came of it. Both results are therefore looked at again before the
 * next transmission. No window is as large as MAX_CWND, and no threshold exceeds the window that it
 * was taken from.
 */
static __always_inline __u32 cubic_ssthresh(__u32 cwnd)
{
	__u32 ssthresh = (__u64)cwnd * 717 / 1024;

	return ssthresh > 2 ? ssthresh : 2;
}

static __always_inline void bound_cwnd(struct tcp_sock *tp)
{
	__u32 cwnd = tp->prior_cwnd;

	if (tp->snd_cwnd <= MAX_CWND)
		return;
	if (cwnd < MIN_CWND || cwnd > MAX_CWND)
		cwnd = MIN_CWND;
	tp->snd_cwnd = cwnd;
	__sync_fetch_and_add(&shared.windows_bounded, 1);
}

/* Recovery from loss is the kernel's business (PRR and cubic). */
static __always_inline bool may_set_cwnd(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ca_state <= TCP_CA_Disorder;
}

/* The pipe may hold twice what the rate needs, so that pacing alone limits the flow. */
static __always_inline void open_cwnd(struct tcp_sock *tp, const struct rw_flow *flow)
{
	__u64 srtt_us = tp->srtt_us >> 3;
	__u32 cwnd = segments(2 * flow->payload_bytes_per_s, srtt_us + CWND_JITTER_US, tp->mss_cache);

	if (tp->snd_cwnd != cwnd)
		tp->snd_cwnd = cwnd;
}

/* Plain TCP from here on, starting at the rate that was in force (flowtune §6). */
static __noinline void unlease(struct tcp_sock *tp, bool restart_cubic)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_flow *flow = flow_of(tp);
	__u64 srtt_us = tp->srtt_us >> 3;
	__u32 cwnd = segments(flow->payload_bytes_per_s, srtt_us, tp->mss_cache);

	tp->snd_ssthresh = cwnd;
	if (may_set_cwnd(tp)) {
		if (restart_cubic)
			cubictcp_init(sk);
		tp->snd_cwnd = cwnd;
		tp->snd_cwnd_cnt = 0;
	}
	/* As tcp_update_pacing_rate() will with the next acknowledgement. */
	if (srtt_us) {
		__u64 rate = 2ULL * cwnd * tp->mss_cache * USEC_PER_SEC / srtt_us;

		sk->sk_pacing_rate = rate < sk->sk_max_pacing_rate ? rate : sk->sk_max_pacing_rate;
	}
	/* An application that set a maximum since then needs pacing. */
	if ((flow->flags & FLOW_PACING_SET) && sk->sk_max_pacing_rate == ~0UL &&
	    sk->sk_pacing_status == RW_SK_PACING_NEEDED)
		sk->sk_pacing_status = RW_SK_PACING_NONE;
	flow->flags &= ~(FLOW_LEASED | FLOW_PACING_SET);
	flow->wire_bytes_per_s = 0;
}

/* A new rate or segment size: the share of the wire rate that is payload. */
static __noinline void new_rate(struct tcp_sock *tp, __u64 wire)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_flow *flow = flow_of(tp);
	__u64 mss = tp->mss_cache;
	__u64 header = ETHERNET_HEADER + (is_v6(sk) ? 40 : 20) + tp->tcp_header_len;
	__u64 payload = wire * mss / (mss + header);

	flow->wire_bytes_per_s = wire;
	flow->mss = mss;
	flow->payload_bytes_per_s =
		payload < MIN_PAYLOAD_BYTES_PER_S ? MIN_PAYLOAD_BYTES_PER_S : payload;
	if (flow->flags & FLOW_LEASED)
		return;
	flow->flags |= FLOW_LEASED;
	if (sk->sk_pacing_status == RW_SK_PACING_NONE) {
		sk->sk_pacing_status = RW_SK_PACING_NEEDED;
		flow->flags |= FLOW_PACING_SET;
	}
}

/* The most bytes that the device takes at once. */
static __always_inline __u64 largest_burst(struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	__u64 bytes = (__u64)sk->sk_gso_max_segs * tp->mss_cache;

	if (bytes > sk->sk_gso_max_size)
		bytes = sk->sk_gso_max_size;
	return bytes ? bytes : 1;
}

/* The pacing rate that makes the flow send what `payload` allows, in spite of late timers. */
static __always_inline __u64 catch_up(struct tcp_sock *tp, struct rw_flow *flow,
				      struct rw_slot *slot, __u64 now)
{
	__u64 payload = flow->payload_bytes_per_s;
	__u64 burst = largest_burst(tp);
	__s64 behind = slot->behind_ns;
	__u64 owed;

	behind += now - slot->counted_ns;
	behind -= (tp->bytes_sent - slot->counted_bytes) * NSEC_PER_SEC / payload;
	if (behind > BEHIND_MAX_NS)
		behind = BEHIND_MAX_NS;
	if (behind < -(__s64)NSEC_PER_SEC)
		behind = -(__s64)NSEC_PER_SEC;
	/* Time without anything to send is not owed. */
	if (behind > 0 && !(flow->flags & FLOW_ACTIVE))
		behind = 0;
	slot->behind_ns = behind;
	slot->counted_ns = now;
	slot->counted_bytes = tp->bytes_sent;
	if (behind < -BEHIND_MAX_NS)
		behind = -BEHIND_MAX_NS;
	if (behind <= 0 || burst > payload >> SMALL_BURST_SHIFT)
		return payload + (((__s64)payload * behind) >> CATCH_UP_SHIFT);
	/* In 256ths of a burst. */
	owed = (payload * behind / NSEC_PER_SEC << 8) / burst;
	if (owed > (CATCH_UP_TIMES - 1) << 8)
		owed = (CATCH_UP_TIMES - 1) << 8;
	return payload + (payload * owed >> 8);
}

/* Applies what user space says about the flow's rate. */
static __always_inline void refresh(struct tcp_sock *tp, struct rw_flow *flow)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_slot *slot = slot_of(flow);
	__u64 now = tp->tcp_clock_cache;
	__u64 wire, rate, expires, common, most, owed;

	if (!slot)
		return;
	wire = load(&slot->rate_bytes_per_s);
	expires = load(&slot->expires_ns);
	common = load(&shared.expires_ns);
	if (common > expires)
		expires = common;
	if (load(&slot->tag) != (((__u64)flow->use_count << 32) | load(&shared.generation)))
		wire = 0;
	if (!wire || now >= expires) {
		if (flow->flags & FLOW_LEASED) {
			if (wire)
				__sync_fetch_and_add(&shared.expired, 1);
			release_pacing(tp);
			unlease(tp, true);
		}
		return;
	}
	if (!(flow->flags & FLOW_LEASED)) {
		slot->behind_ns = 0;
		slot->counted_ns = now;
		/* What went out before the rate came stands in a queue: about 2 ms of it are owed. */
		owed = (__u64)tp->packets_out * tp->mss_cache;
		if (owed > wire >> 9)
			owed = wire >> 9;
		slot->counted_bytes = tp->bytes_sent - owed;
	}
	if (wire != flow->wire_bytes_per_s || flow->mss != (__u16)tp->mss_cache)
		new_rate(tp, wire);
	most = flow->payload_bytes_per_s + (flow->payload_bytes_per_s >> CATCH_UP_MOST_SHIFT);
	if (sk->sk_max_pacing_rate != most)
		bound_pacing(tp, most);
	rate = catch_up(tp, flow, slot, now);
	/* The application's own maximum. */
	if (sk->sk_max_pacing_rate < most && rate > sk->sk_max_pacing_rate)
		rate = sk->sk_max_pacing_rate;
	sk->sk_pacing_rate = rate;
	if (may_set_cwnd(tp))
		open_cwnd(tp, flow);
	if (!(flow->flags & FLOW_FIRST_PACED)) {
		flow->flags |= FLOW_FIRST_PACED;
		/* A rate that came while the flow was idle waited for the application. */
		if (flow->flags & FLOW_ACTIVE)
			emit(tp, flow->slot - 1, flow->use_count, RW_EVENT_FIRST_PACED,
			     bpf_ktime_get_ns() - flow->start_ns);
	}
}

/* The first transmission into an empty pipe. */
static __noinline void begin_flowlet(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);
	struct rw_cold *rare = bpf_sk_storage_get(&cold, tp, NULL, 0);
	__u64 first_write_ns = 0;
	struct rw_slot *slot;

	flow->flags |= FLOW_ACTIVE;
	flow->flags &= ~FLOW_FULL;
	flow->start_seq = tp->snd_nxt;
	flow->failed_tick = (tp->tcp_clock_cache >> TICK_SHIFT) - 1;
	if (rare) {
		first_write_ns = rare->first_write_ns;
		rare->first_write_ns = 0;
	}
	if (flow->slot) {
		slot = slot_of(flow);
		if (slot && swap_owner(slot, owner_word(flow->use_count, SLOT_IDLE),
				       owner_word(flow->use_count, SLOT_ACTIVE))) {
			emit(tp, flow->slot - 1, flow->use_count, RW_EVENT_RESUME, 0);
			return;
		}
		/* User space has ended the flowlet and taken the slot. */
		flow->slot = 0;
		if (flow->flags & FLOW_LEASED) {
			release_pacing(tp);
			unlease(tp, true);
		}
	}
	flow->start_ns = first_write_ns ? first_write_ns : tp->tcp_clock_cache;
}

/* Everything that was written is acknowledged. */
static __noinline void end_flowlet(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);
	__u32 use_count = flow->use_count;
	struct rw_slot *slot;

	flow->flags &= ~FLOW_ACTIVE;
	if (!flow->slot)
		return;
	slot = slot_of(flow);
	if (!slot || !swap_owner(slot, owner_word(use_count, SLOT_ACTIVE),
				 owner_word(use_count, SLOT_IDLE)))
		return;
	if (load(&slot->ended) == owner_word(use_count, 1)) {
		/* Ended while it was active: nobody waits for its idleness. */
		if (swap_owner(slot, owner_word(use_count, SLOT_IDLE),
			       owner_word(use_count + 1, SLOT_FREE))) {
			emit(tp, flow->slot - 1, use_count, RW_EVENT_CLOSE, 0);
			give_back(flow->slot - 1);
			flow->slot = 0;
		}
		return;
	}
	emit(tp, flow->slot - 1, use_count, RW_EVENT_IDLE, 0);
}

SEC("struct_ops/init")
void BPF_PROG(rw_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);

	cubictcp_init(sk);
	shared.cc_key = tp->inet_conn.icsk_ca_ops->key;
	/* New namespaces inherit the first one's default congestion control. */
	if (is_local(sk) || sk->__sk_common.skc_net.net->ns.inum != netns_inum)
		flow->flags = FLOW_ALIEN;
	if (tp->snd_una != tp->write_seq) {
		/* Taken over in the middle of a flowlet. */
		flow->flags |= FLOW_ACTIVE;
		flow->start_seq = tp->snd_una;
		flow->start_ns = bpf_ktime_get_ns();
		flow->failed_tick = (flow->start_ns >> TICK_SHIFT) - 1;
	}
}

SEC("struct_ops/release")
void BPF_PROG(rw_release, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);
	__u32 use_count = flow->use_count;
	__u64 freed = owner_word(use_count + 1, SLOT_FREE);
	struct rw_slot *slot;

	if (!flow->slot)
		return;
	if (flow->flags & FLOW_LEASED)
		unlease(tp, false);
	slot = slot_of(flow);
	if (slot && (swap_owner(slot, owner_word(use_count, SLOT_ACTIVE), freed) ||
		     swap_owner(slot, owner_word(use_count, SLOT_IDLE), freed))) {
		emit(tp, flow->slot - 1, use_count, RW_EVENT_CLOSE, 0);
		give_back(flow->slot - 1);
	}
	flow->slot = 0;
}

SEC("struct_ops/ssthresh")
__u32 BPF_PROG(rw_ssthresh, struct sock *sk)
{
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops/undo_cwnd")
__u32 BPF_PROG(rw_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops/set_state")
void BPF_PROG(rw_set_state, struct sock *sk, __u8 new_state)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;

	cubictcp_state(sk, new_state);
	if (new_state >= TCP_CA_CWR && tp->snd_ssthresh > tp->prior_cwnd)
		tp->snd_ssthresh = cubic_ssthresh(tp->prior_cwnd);
	bound_cwnd(tp);
}

SEC("struct_ops/cwnd_event")
void BPF_PROG(rw_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);

	cubictcp_cwnd_event(sk, event);
	if (event != CA_EVENT_TX_START)
		return;
	/* Also raised by retransmissions and by a pipe that pacing let run dry. */
	if (!(flow->flags & FLOW_ACTIVE))
		begin_flowlet(tp);
	report_if_large(tp, flow);
}

SEC("struct_ops/cong_avoid")
void BPF_PROG(rw_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);

	if ((flow->flags & FLOW_LEASED) && may_set_cwnd(tp))
		open_cwnd(tp, flow);
	else
		cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops/pkts_acked")
void BPF_PROG(rw_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);

	if (!(flow->flags & FLOW_LEASED))
		cubictcp_acked(sk, sample);
	if (!(flow->flags & FLOW_ACTIVE))
		return;
	report_if_large(tp, flow);
	if (!tp->packets_out && tp->write_seq == tp->snd_nxt)
		end_flowlet(tp);
}

SEC("struct_ops/min_tso_segs")
__u32 BPF_PROG(rw_min_tso_segs, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);

	bound_cwnd(tp);
	report_if_large(tp, flow);
	if (!flow->slot)
		return 2;
	refresh(tp, flow);
	if ((flow->flags & FLOW_LEASED) && flow->payload_bytes_per_s < ONE_SEGMENT_BYTES_PER_S)
		return 1;
	return 2;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops rw_cc = {
	.init = (void *)rw_init,
	.release = (void *)rw_release,
	.ssthresh = (void *)rw_ssthresh,
	.undo_cwnd = (void *)rw_undo_cwnd,
	.set_state = (void *)rw_set_state,
	.cwnd_event = (void *)rw_cwnd_event,
	.cong_avoid = (void *)rw_cong_avoid,
	.pkts_acked = (void *)rw_pkts_acked,
	.min_tso_segs = (void *)rw_min_tso_segs,
	/* May be the default of a network namespace. */
	.flags = RW_TCP_CONG_NON_RESTRICTED,
	.name = "rw",
};

/*
 * Remembers when a flowlet's first byte was written: the transmission that starts the flowlet comes
 * only when the first segment is full.
 */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(rw_first_write, struct sock *sk)
{
	struct tcp_sock *tp;
	struct rw_cold *rare;

	if (sk->__sk_common.skc_net.net->ns.inum != netns_inum)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || tp->inet_conn.icsk_ca_ops->key != shared.cc_key || !shared.cc_key)
		return 0;
	if (flow_of(tp)->flags & (FLOW_ACTIVE | FLOW_ALIEN))
		return 0;
	rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (rare && !rare->first_write_ns)
		rare->first_write_ns = bpf_ktime_get_ns();
	return 0;
}

/* Switches one socket of this network namespace to this congestion control. */
SEC("iter/tcp")
int rw_take_over(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	char name[RW_TCP_CA_NAME_MAX] = {};
	__u32 no_maximum = ~0U;
	struct rw_cold *rare;
	struct tcp_sock *tp;
	bool inherited;
	__u8 state;

	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	/* The children of listeners start with the namespace's default. */
	state = common->skc_state;
	if (state == RW_TCP_LISTEN || state == RW_TCP_CLOSE || is_local((struct sock *)tp))
		return 0;
	if (bpf_getsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)) ||
	    same_name(name, cc_name))
		return 0;
	inherited = name[0] == 'r' && name[1] == 'w' && name[2] == '_';
	if (!inherited) {
		rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (rare)
			copy_name(rare->previous_cc, name);
	}
	copy_name(name, cc_name);
	if (bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)))
		__sync_fetch_and_add(&shared.switch_failed, 1);
	else if (state == RW_TCP_ESTABLISHED)
		__sync_fetch_and_add(&shared.adopted, 1);
	/* The maximum of a program that is gone: what it stood for is no longer known. */
	if (inherited)
		bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &no_maximum,
			       sizeof(no_maximum));
	return 0;
}

/* Switches one socket back to what it had. */
SEC("iter/tcp")
int rw_give_back(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	char name[RW_TCP_CA_NAME_MAX] = {};
	struct rw_cold *rare;
	struct tcp_sock *tp;

	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	if (bpf_getsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)) ||
	    !same_name(name, cc_name))
		return 0;
	release_pacing(tp);
	rare = bpf_sk_storage_get(&cold, tp, NULL, 0);
	if (rare && rare->previous_cc[0])
		copy_name(name, rare->previous_cc);
	else
		copy_name(name, default_cc);
	if (bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)))
		__sync_fetch_and_add(&shared.switch_failed, 1);
	return 0;
}
