/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Congestion windows and thresholds, and their correction.
 *
 * TCP asks a congestion control for two values, the threshold after a loss and the window after a
 * loss that was none. Programs compute both, and a program's value can get lost: a kernel that
 * passes over a program (docs/operating/endpointd.md, "When the kernel passes over a program") takes
 * a word of old stack for it. So nothing may depend on either. Every hook compares window and
 * threshold with the values that TCP can have reached since the last hook, and corrects others:
 *
 * - a window grows by the packets that were delivered meanwhile at most, or to the window that the
 *   last loss had reduced (tcp_undo_cwnd_reduction);
 * - while a loss is recovered from, the threshold is cubic's share of that window.
 */
#ifndef RATEWRIGHT_CC_WINDOW_H
#define RATEWRIGHT_CC_WINDOW_H

#include "cc_state.h"

extern void cubictcp_init(struct sock *sk) __ksym;

/* RFC 6928's initial window, which any connection may have in flight. */
#define MIN_CWND 10
#define MAX_CWND 1000000
/* tcp_cong_avoid_ai() may add one more than was delivered. */
#define CWND_SLACK 2
/* Host scheduling delays of this size must not leave the link idle. */
#define CWND_JITTER_US 1000

/* `bytes_per_s` over `us` microseconds in segments, within [MIN_CWND, MAX_CWND]. */
static __always_inline __u32 segments(__u64 bytes_per_s, __u64 us, __u32 mss)
{
	__u64 count = bytes_per_s * us / USEC_PER_SEC / (mss ? mss : 1);

	if (count < MIN_CWND)
		return MIN_CWND;
	return count > MAX_CWND ? MAX_CWND : count;
}

/* The kernel recovers from loss itself (PRR and cubic). */
static __always_inline bool may_set_cwnd(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ca_state <= TCP_CA_Disorder;
}

static __always_inline void see_cwnd(struct tcp_sock *tp, struct rw_flow *flow)
{
	flow->seen_cwnd = tp->snd_cwnd;
	flow->seen_delivered = tp->delivered;
}

/* Threshold that cubic derives from a window after a loss (net/ipv4/tcp_cubic.c, beta = 717 / 1024). */
static __always_inline __u32 cubic_ssthresh(__u32 cwnd)
{
	__u32 ssthresh = (__u64)cwnd * 717 / 1024;

	return ssthresh > 2 ? ssthresh : 2;
}

static __always_inline void mend_cwnd(struct tcp_sock *tp, struct rw_flow *flow)
{
	__u64 most = (__u64)flow->seen_cwnd + (__u32)(tp->delivered - flow->seen_delivered) +
		     CWND_SLACK;
	__u32 prior = tp->prior_cwnd;
	__u32 cwnd = tp->snd_cwnd;

	if (prior > MAX_CWND)
		prior = MIN_CWND;
	if (most < prior)
		most = prior;
	if (most < MIN_CWND)
		most = MIN_CWND;
	if (most > MAX_CWND)
		most = MAX_CWND;
	if (!cwnd || cwnd > most) {
		tp->snd_cwnd = prior > MIN_CWND ? prior : MIN_CWND;
		__sync_fetch_and_add(&shared.windows_bounded, 1);
	}
	see_cwnd(tp, flow);
}

static __always_inline void mend_ssthresh(struct tcp_sock *tp)
{
	__u32 prior = tp->prior_cwnd;
	__u32 least;

	if (may_set_cwnd(tp) || !prior || prior > MAX_CWND)
		return;
	least = cubic_ssthresh(prior);
	if (tp->snd_ssthresh < least || tp->snd_ssthresh > (prior > least ? prior : least)) {
		tp->snd_ssthresh = least;
		__sync_fetch_and_add(&shared.windows_bounded, 1);
	}
}

/* The pipe may hold twice what the rate needs, so that pacing alone limits the flow. */
static __always_inline void open_cwnd(struct tcp_sock *tp, struct rw_flow *flow)
{
	__u64 srtt_us = tp->srtt_us >> 3;
	__u32 cwnd = segments(2ULL * flow->payload_bytes_per_s, srtt_us + CWND_JITTER_US, tp->mss_cache);

	if (tp->snd_cwnd != cwnd)
		tp->snd_cwnd = cwnd;
	see_cwnd(tp, flow);
}

/* The window that `payload_bytes_per_s` needs, and cubic from there (flowtune §6). */
static __always_inline __u32 restart_window(struct tcp_sock *tp, struct rw_flow *flow,
					    bool restart_cubic)
{
	__u32 cwnd = segments(flow->payload_bytes_per_s, tp->srtt_us >> 3, tp->mss_cache);

	if (may_set_cwnd(tp)) {
		if (restart_cubic)
			cubictcp_init((struct sock *)tp);
		tp->snd_ssthresh = cwnd;
		tp->snd_cwnd = cwnd;
		tp->snd_cwnd_cnt = 0;
		see_cwnd(tp, flow);
	}
	return cwnd;
}

#endif /* RATEWRIGHT_CC_WINDOW_H */
