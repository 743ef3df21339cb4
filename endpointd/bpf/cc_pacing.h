/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Rates and leases. A rate is put in force as the socket's maximum (SO_MAX_PACING_RATE): the kernel
 * goes back to it by itself with each acknowledgement, whether these programs run or not, and no
 * program's result is needed for it. The application's own maximum is remembered, still counts,
 * and comes back with plain TCP.
 */
#ifndef RATEWRIGHT_CC_PACING_H
#define RATEWRIGHT_CC_PACING_H

#include "cc_window.h"

/*
 * TCP's pacing timers are late, by 20 us on a guest and by 30 to 100 us on a core that sleeps, and the
 * kernel makes up for half a burst of that at most. `behind_ns` counts what the flow's rate would
 * have let it send and it did not. A flow makes up for 2^20 ns (1 ms) of its rate, which all flows of
 * a link may owe at once and which has to fit into a shallow buffer.
 *
 * How fast depends on the largest burst that the device takes from one timer. Where that is more than
 * 2^-12 s of the rate, half of it is credit enough for most, and the rest is sent within 4 ms, at a quarter
 * more at most. Where it is less, a late timer costs whole bursts; what is owed is then sent within 1 ms, at
 * twice the rate at most. In either case it takes two round trips and four segments at least: a correction
 * that overshoots before the next look at the flow would swing between its bounds.
 *
 * A flow that its application limits saves up the bytes of a mouse (`min_flowlet_bytes`), or of TCP's initial
 * window if that is more, and may send those within 1 ms at any time, whatever its rate: a flow that was given
 * little because it used little must not wait for its first segments when it wants more. Only acknowledgements
 * show it a new rate, and a receiver may hold the one of a single segment back.
 */
#define BEHIND_MAX_NS (1LL << 20)
#define WITHIN_NS (1ULL << 22)
#define SMALL_BURST_WITHIN_NS (1ULL << 20)
#define SMALL_BURST_SHIFT 12
/* Rates of successive hooks may differ by this part without a call. */
#define CAP_STEP_SHIFT 6
/* One full segment in about a third of a second: the longest that a raise can have to wait. */
#define MIN_PAYLOAD_BYTES_PER_S 4096
/* SO_MAX_PACING_RATE has 32 bits here, and all of them set mean "none". */
#define MOST_PAYLOAD_BYTES_PER_S ((NO_MAXIMUM - 1) / 9 * 8)

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

/* Whether rates of this size are kept by pacing; beyond, the flow is plain TCP. */
static __always_inline bool is_paceable(const struct rw_flow *flow)
{
	return flow->payload_bytes_per_s <= MOST_PAYLOAD_BYTES_PER_S;
}

/* Stores the application's own maximum, if the socket's is not the one that we set. */
static __always_inline void see_own_max(struct tcp_sock *tp, struct rw_flow *flow)
{
	__u64 present = ((struct sock *)tp)->sk_max_pacing_rate;

	if (!flow->set_max || present != flow->set_max)
		flow->own_max = present < NO_MAXIMUM ? present : NO_MAXIMUM;
}

/* The application's own maximum in bytes/s; ~0: none. */
static __always_inline __u64 own_pacing_max(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);

	see_own_max(tp, flow);
	return flow->own_max == NO_MAXIMUM ? ~0ULL : flow->own_max;
}

/* Caps the socket at `bytes_per_s`, or at its application's own maximum if that is less. */
static __noinline void cap(struct tcp_sock *tp, __u64 bytes_per_s)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_flow *flow = flow_of(tp);
	__u32 value, step;

	see_own_max(tp, flow);
	if (bytes_per_s >= NO_MAXIMUM)
		bytes_per_s = NO_MAXIMUM - 1;
	value = bytes_per_s < flow->own_max ? bytes_per_s : flow->own_max;
	step = flow->set_max >> CAP_STEP_SHIFT;
	if (sk->sk_max_pacing_rate != flow->set_max || value > flow->set_max + step ||
	    value + step < flow->set_max) {
		flow->set_max = value;
		if (sk->sk_max_pacing_rate != value)
			bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &value,
				       sizeof(value));
	}
	/* The option lowers the rate by itself; a raise would wait for the next acknowledgement. */
	sk->sk_pacing_rate = flow->set_max;
}

/* The application's own maximum is in force again. */
static __always_inline void uncap(struct tcp_sock *tp, struct rw_flow *flow)
{
	__u32 value = flow->own_max;

	if (!flow->set_max)
		return;
	if (((struct sock *)tp)->sk_max_pacing_rate == flow->set_max)
		bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &value, sizeof(value));
	flow->set_max = 0;
}

/* After a lease's end: the pacing rate that the next acknowledgement would set, and no pacing if
 * only we had asked for it. */
static __always_inline void pace_plainly(struct tcp_sock *tp, struct rw_flow *flow, __u32 cwnd)
{
	struct sock *sk = (struct sock *)tp;
	__u64 srtt_us = tp->srtt_us >> 3;

	if (srtt_us) {
		__u64 rate = 2ULL * cwnd * tp->mss_cache * USEC_PER_SEC / srtt_us;

		sk->sk_pacing_rate = rate < sk->sk_max_pacing_rate ? rate : sk->sk_max_pacing_rate;
	}
	/* An application that set a maximum since then needs pacing. */
	if ((flow->flags & FLOW_PACING_SET) && sk->sk_max_pacing_rate == ~0UL &&
	    sk->sk_pacing_status == RW_SK_PACING_NEEDED)
		sk->sk_pacing_status = RW_SK_PACING_NONE;
}

/* Plain TCP from here on, starting at the rate that was in force (flowtune §6). */
static __noinline void unlease(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);
	bool paced = is_paceable(flow);

	uncap(tp, flow);
	if (!(flow->flags & FLOW_LEASED))
		return;
	if (paced)
		pace_plainly(tp, flow, restart_window(tp, flow, true));
	flow->flags &= ~(FLOW_LEASED | FLOW_PACING_SET);
}

/* A new rate or segment size: the share of the wire rate that is payload. */
static __noinline void new_rate(struct tcp_sock *tp, __u64 wire)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_flow *flow = flow_of(tp);
	__u64 mss = tp->mss_cache;
	__u64 payload = wire * mss / (mss + header_bytes(tp));

	if (payload < MIN_PAYLOAD_BYTES_PER_S)
		payload = MIN_PAYLOAD_BYTES_PER_S;
	flow->mss = mss;
	if ((flow->flags & FLOW_LEASED) && is_paceable(flow) && payload > MOST_PAYLOAD_BYTES_PER_S) {
		uncap(tp, flow);
		pace_plainly(tp, flow, restart_window(tp, flow, true));
		flow->flags &= ~FLOW_PACING_SET;
	}
	flow->payload_bytes_per_s = payload < NO_MAXIMUM ? payload : NO_MAXIMUM;
	if (sk->sk_pacing_status == RW_SK_PACING_NONE)
		flow->flags |= FLOW_PACING_SET;
	flow->flags |= FLOW_LEASED;
}

static __always_inline __u32 in_flight(struct tcp_sock *tp)
{
	return tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
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

/*
 * Whether nothing but the rate keeps the flow from sending: a full segment waits, and the window, the
 * receiver's and our own, has room for it.
 */
static __always_inline bool is_limited(struct tcp_sock *tp)
{
	__u32 mss = tp->mss_cache;
	__s32 room = tp->snd_una + tp->snd_wnd - tp->snd_nxt;

	return tp->write_seq - tp->snd_nxt >= mss && room >= (__s32)mss &&
	       in_flight(tp) < tp->snd_cwnd && may_set_cwnd(tp);
}

/* The most bytes that count as on their way out. */
#define HELD_BYTES 65536

/*
 * Whether the application has more to send than plain TCP lets out, and the receiver has room for it. What
 * TCP sends within a millisecond is not held up: an application that writes in blocks has no more to send.
 */
static __always_inline bool is_backlogged(struct tcp_sock *tp)
{
	__u32 mss = tp->mss_cache;
	__s32 room = tp->snd_una + tp->snd_wnd - tp->snd_nxt;
	__u64 held = ((struct sock *)tp)->sk_pacing_rate / 1000;

	if (held > HELD_BYTES)
		held = HELD_BYTES;
	if (held < mss)
		held = mss;
	return (__s32)(tp->write_seq - tp->snd_nxt) >= (__s32)held && room >= (__s32)mss;
}

/* The maximum that makes the flow send what `payload` allows, in spite of late timers. */
static __always_inline __u64 catch_up(struct tcp_sock *tp, struct rw_flow *flow,
				      struct rw_slot *slot, __u64 now, bool limited)
{
	__u64 payload = flow->payload_bytes_per_s;
	__u64 initial = MIN_CWND * tp->mss_cache;
	__u64 saved = min_flowlet_bytes > initial ? min_flowlet_bytes : initial;
	__s64 saved_ns = saved * NSEC_PER_SEC / payload;
	__s64 before = slot->behind_ns, behind = before, most = BEHIND_MAX_NS;
	__u64 within, looks, more;
	bool small;
	__u64 sent = tp->bytes_sent - slot->counted_bytes;

	behind += now - slot->counted_ns;
	behind -= sent * NSEC_PER_SEC / payload;
	if (!limited && most < saved_ns)
		most = saved_ns;
	/* What was saved up is not taken away when the flow begins to need it. */
	if (limited && most < before)
		most = before;
	if (behind > most)
		behind = most;
	if (behind < -(__s64)NSEC_PER_SEC)
		behind = -(__s64)NSEC_PER_SEC;
	slot->behind_ns = behind;
	slot->counted_ns = now;
	slot->counted_bytes = tp->bytes_sent;
	if (behind < -BEHIND_MAX_NS)
		behind = -BEHIND_MAX_NS;
	if (behind > BEHIND_MAX_NS)
		/* Saved up: sent within a millisecond. */
		return payload * behind / BEHIND_MAX_NS;
	small = largest_burst(tp) <= payload >> SMALL_BURST_SHIFT;
	within = small && behind > 0 ? SMALL_BURST_WITHIN_NS : WITHIN_NS;
	/* A hook's decision holds until the next hook, up to a round trip or two segments later. */
	looks = (__u64)(tp->srtt_us >> 3) * 2000;
	if (looks < 4 * tp->mss_cache * NSEC_PER_SEC / payload)
		looks = 4 * tp->mss_cache * NSEC_PER_SEC / payload;
	if (within < looks)
		within = looks;
	more = payload * (behind < 0 ? -behind : behind) / within;
	return behind < 0 ? payload - more : payload + more;
}

/* Records the flow's use for user space. */
static __always_inline void note_use(struct tcp_sock *tp, struct rw_flow *flow, struct rw_slot *slot,
				     __u64 now, bool limited)
{
	__u64 watch = owner_word(flow->use_count, 1);

	slot->sent_bytes = tp->bytes_sent + (__u64)tp->data_segs_out * header_bytes(tp);
	slot->acked_bytes = tp->bytes_acked;
	if (!limited)
		return;
	slot->limited_ns = now;
	if (load(&slot->watched) == watch &&
	    __sync_val_compare_and_swap(&slot->watched, watch, 0) == watch &&
	    !emit(tp, flow->slot - 1, flow->use_count, RW_EVENT_LIMITED, 0))
		slot->watched = watch;
}

/* Whether the slot's rate is in force for this flow; it is then in `*wire`. */
static __always_inline bool is_leased(const struct rw_flow *flow, const struct rw_slot *slot,
				      __u64 now, __u64 *wire)
{
	__u64 expires, common;

	/* The tag first: a rate of a former owner is never joined with the tag of this one. */
	if (__sync_fetch_and_add((__u64 *)&slot->tag, 0) !=
	    (((__u64)flow->use_count << 32) | load(&shared.generation))) {
		*wire = 0;
		return false;
	}
	*wire = load(&slot->rate_bytes_per_s);
	expires = load(&slot->expires_ns);
	common = load(&shared.expires_ns);
	return *wire && now < (common > expires ? common : expires);
}

/*
 * Whether the flow runs in bursts of its own: half the longest that is allowed holds at least one of the
 * device. A maximum of the application's, and a queue that paces (fq), keep their pacing.
 */
static __always_inline bool runs_in_bursts(struct tcp_sock *tp, const struct rw_flow *flow)
{
	__u64 half = flow->payload_bytes_per_s * (max_burst_ns / 2) / NSEC_PER_SEC;

	return largest_burst(tp) <= half && flow->own_max == NO_MAXIMUM && may_set_cwnd(tp) &&
	       ((struct sock *)tp)->sk_pacing_status != RW_SK_PACING_FQ;
}

/*
 * One timer for several bursts of the device. A flow that is not ahead of its rate sends, without pacing, what
 * it is behind and half a burst more: the window bounds that, whatever runs afterwards. One that is ahead
 * waits for half a burst, by a pacing rate that makes one burst of the device take that long.
 */
static __always_inline void run_in_bursts(struct tcp_sock *tp, struct rw_flow *flow,
					  const struct rw_slot *slot)
{
	struct sock *sk = (struct sock *)tp;
	__u64 payload = flow->payload_bytes_per_s, burst = largest_burst(tp);
	__s64 behind = slot->behind_ns;
	__u32 allowed;

	cap(tp, burst * NSEC_PER_SEC / (max_burst_ns / 2 + burst * NSEC_PER_SEC / payload));
	open_cwnd(tp, flow);
	if (behind < 0) {
		sk->sk_pacing_status = RW_SK_PACING_NEEDED;
		return;
	}
	if (behind > BEHIND_MAX_NS)
		behind = BEHIND_MAX_NS;
	sk->sk_pacing_status = RW_SK_PACING_NONE;
	allowed = in_flight(tp) +
		  segments(payload, (behind + max_burst_ns / 2) / 1000, tp->mss_cache);
	if (allowed < tp->snd_cwnd)
		tp->snd_cwnd = allowed;
	see_cwnd(tp, flow);
}

/* What is owed or saved up is bytes: at a higher rate they take less time. */
static __always_inline __s64 at_higher_rate(__s64 behind_ns, __u64 before, __u64 after)
{
	__u64 size = behind_ns < 0 ? -behind_ns : behind_ns;

	if (before >= after)
		return behind_ns;
	size = size * before / after;
	return behind_ns < 0 ? -(__s64)size : (__s64)size;
}

/* Applies the rate that user space has set for the flow, and records its use. */
static __always_inline void refresh(struct tcp_sock *tp, struct rw_flow *flow)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_slot *slot;
	__u64 now = tp->tcp_clock_cache;
	__u64 wire, owed, rate, before;
	bool limited;

	if (!flow->slot) {
		/* Without a slot there is no lease, however the slot was lost. */
		if (flow->flags & FLOW_LEASED)
			unlease(tp);
		return;
	}
	slot = slot_of(flow);
	if (!slot)
		return;
	if (!is_leased(flow, slot, now, &wire)) {
		if (flow->flags & FLOW_LEASED) {
			if (wire)
				__sync_fetch_and_add(&shared.expired, 1);
			unlease(tp);
		}
		if (load(&shared.observing))
			note_use(tp, flow, slot, now, is_backlogged(tp));
		return;
	}
	if (!(flow->flags & FLOW_LEASED)) {
		slot->wire_bytes_per_s = 0;
		slot->behind_ns = 0;
		slot->counted_ns = now;
		/* Segments sent before the rate came stand in a queue: about 2 ms of them are owed. */
		owed = (__u64)tp->packets_out * tp->mss_cache;
		if (owed > wire >> 9)
			owed = wire >> 9;
		slot->counted_bytes = tp->bytes_sent - owed;
	}
	if (wire != slot->wire_bytes_per_s || flow->mss != (__u16)tp->mss_cache) {
		before = flow->payload_bytes_per_s;
		slot->wire_bytes_per_s = wire;
		new_rate(tp, wire);
		/* 0 for a lease that has just begun, whatever the rate was before. */
		slot->behind_ns = at_higher_rate(slot->behind_ns, before, flow->payload_bytes_per_s);
	}
	limited = is_limited(tp);
	note_use(tp, flow, slot, now, limited);
	if (is_paceable(flow)) {
		rate = catch_up(tp, flow, slot, now, limited);
		if (runs_in_bursts(tp, flow)) {
			run_in_bursts(tp, flow, slot);
		} else {
			cap(tp, rate);
			if (sk->sk_pacing_status == RW_SK_PACING_NONE)
				sk->sk_pacing_status = RW_SK_PACING_NEEDED;
			if (may_set_cwnd(tp))
				open_cwnd(tp, flow);
		}
	}
	if (!(flow->flags & FLOW_FIRST_PACED)) {
		struct rw_sock_storage *rare = bpf_sk_storage_get(&cold, tp, NULL, 0);

		flow->flags |= FLOW_FIRST_PACED;
		/* A rate that came while the flow was idle waited for the application. */
		if (rare && (flow->flags & FLOW_ACTIVE))
			emit(tp, flow->slot - 1, flow->use_count, RW_EVENT_FIRST_PACED,
			     bpf_ktime_get_ns() - rare->start_ns);
	}
}

#endif /* RATEWRIGHT_CC_PACING_H */
