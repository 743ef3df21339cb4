/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Flowlets (flowtune §1): one begins with the first transmission after an empty pipe and ends when
 * everything written was acknowledged, or when it stalls: the receiver's window is closed, or the peer
 * does not answer. It is reported once it is larger than a mouse; only then does the connection take
 * a slot of the flow table, and it gives the slot back when user space has ended the flowlet or the
 * socket closes.
 */
#ifndef RATEWRIGHT_CC_FLOWLET_H
#define RATEWRIGHT_CC_FLOWLET_H

#include "cc_pacing.h"

/* Ticks of about 17 ms. */
#define TICK_SHIFT 24
/* IDLE is sent this often at most, and not at all of a watched flowlet. */
#define IDLE_EVERY_NS 1000000

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
	slot->met_pass = load(&shared.pass);
	slot->limited_ns = 0;
	slot->rests_ns = 0;
	slot->idle_ns = 0;
	slot->sent_bytes = 0;
	slot->acked_bytes = 0;
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

/* A flowlet that had stalled has to get the bytes of a flowlet through before it counts again. */
static __always_inline void report_if_large(struct tcp_sock *tp, struct rw_flow *flow)
{
	__u32 end = flow->flags & FLOW_STALLED ? tp->snd_una : tp->write_seq;

	if ((flow->flags & (FLOW_ACTIVE | FLOW_UNMANAGED)) == FLOW_ACTIVE && !flow->slot &&
	    end - flow->start_seq >= min_flowlet_bytes) {
		report(tp);
		flow->flags &= ~FLOW_STALLED;
	}
}

/* The first transmission into an empty pipe. */
static __noinline void begin_flowlet(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);
	struct rw_sock_storage *rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	struct rw_slot *slot;

	flow->flags |= FLOW_ACTIVE;
	flow->flags &= ~FLOW_FULL;
	if (!(flow->flags & FLOW_STALLED))
		flow->start_seq = tp->snd_nxt;
	flow->failed_tick = (tp->tcp_clock_cache >> TICK_SHIFT) - 1;
	if (rare) {
		rare->start_ns = rare->first_write_ns ? rare->first_write_ns : tp->tcp_clock_cache;
		rare->first_write_ns = 0;
	}
	if (flow->slot) {
		slot = slot_of(flow);
		if (slot && swap_owner(slot, owner_word(flow->use_count, SLOT_IDLE),
				       owner_word(flow->use_count, SLOT_ACTIVE))) {
			flow->flags &= ~FLOW_STALLED;
			if (!slot->rests_ns || load(&slot->ended) == owner_word(flow->use_count, 1))
				emit(tp, flow->slot - 1, flow->use_count, RW_EVENT_RESUME, 0);
			slot->rests_ns = 0;
			return;
		}
		/* User space has ended the flowlet and taken the slot. */
		flow->slot = 0;
	}
	/* Without a slot there is no lease, however the slot was lost. */
	unlease(tp);
}

/* Everything that was written is acknowledged, or nothing of it gets through. */
static __noinline void end_flowlet(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);
	__u32 use_count = flow->use_count;
	__u64 now = tp->tcp_clock_cache;
	struct rw_slot *slot;

	flow->flags &= ~FLOW_ACTIVE;
	if (!flow->slot)
		return;
	slot = slot_of(flow);
	if (!slot || !swap_owner(slot, owner_word(use_count, SLOT_ACTIVE),
				 owner_word(use_count, SLOT_IDLE)))
		return;
	if (load(&slot->ended) == owner_word(use_count, 1)) {
		/* Ended while it was active: user space waits for no IDLE. */
		if (swap_owner(slot, owner_word(use_count, SLOT_IDLE),
			       owner_word(use_count + 1, SLOT_FREE))) {
			emit(tp, flow->slot - 1, use_count, RW_EVENT_CLOSE, 0);
			give_back(flow->slot - 1);
			flow->slot = 0;
			unlease(tp);
		}
		return;
	}
	/*
	 * A flow in small writes, and a fast one that its application cannot keep busy, rests for a moment
	 * thousands of times a second: user space sees that in the flow's use.
	 */
	if (((flow->flags & FLOW_LEASED) || load(&shared.observing)) &&
	    (load(&slot->watched) == owner_word(use_count, 1) ||
	     now - slot->idle_ns < IDLE_EVERY_NS)) {
		slot->rests_ns = now;
		return;
	}
	slot->idle_ns = now;
	emit(tp, flow->slot - 1, use_count, RW_EVENT_IDLE, 0);
}

static __noinline void stall(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);

	flow->flags |= FLOW_STALLED;
	flow->start_seq = tp->snd_una;
	end_flowlet(tp);
}

/*
 * A flowlet that user space has ended although it runs, since nothing got through: it is reported again
 * once the bytes of a flowlet have got through after all.
 */
static __always_inline void report_revived(struct tcp_sock *tp, struct rw_flow *flow)
{
	struct rw_slot *slot;

	if (!flow->slot)
		return;
	slot = slot_of(flow);
	if (!slot || load(&slot->ended) != owner_word(flow->use_count, 1))
		return;
	if (!(flow->flags & FLOW_STALLED)) {
		flow->flags |= FLOW_STALLED;
		flow->start_seq = tp->snd_una;
	} else if (tp->snd_una - flow->start_seq >= min_flowlet_bytes &&
		   emit(tp, flow->slot - 1, flow->use_count, RW_EVENT_RESUME, 0)) {
		flow->flags &= ~FLOW_STALLED;
	}
}

/* Begins a flowlet at a transmission into an empty pipe, unless that only asks whether a peer is back. */
static __always_inline void on_tx_start(struct tcp_sock *tp, struct rw_flow *flow)
{
	if (flow->flags & FLOW_ACTIVE)
		/* Also raised by retransmissions, and by a pipe that pacing let run dry. */
		return;
	if ((flow->flags & FLOW_STALLED) && tp->inet_conn.icsk_ca_state == TCP_CA_Loss &&
	    tp->snd_una == flow->start_seq)
		return;
	begin_flowlet(tp);
}

/* After bytes were acknowledged: whether there is nothing left, or nothing that may be sent. */
static __always_inline void on_acked(struct tcp_sock *tp, struct rw_flow *flow)
{
	__u32 unsent = tp->write_seq - tp->snd_nxt;
	__u32 need = unsent < tp->mss_cache ? unsent : tp->mss_cache;

	if (tp->packets_out)
		return;
	if (!unsent) {
		flow->flags &= ~FLOW_STALLED;
		end_flowlet(tp);
	} else if (tp->snd_wnd < need) {
		stall(tp);
	}
}

#endif /* RATEWRIGHT_CC_FLOWLET_H */
