/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A TCP congestion control that is the kernel's cubic until user space grants a rate, paces at that
 * rate while its lease lasts, and is cubic again, from that rate, when the lease runs out
 * (flowtune §6, fault-tolerance).
 *
 *   file            contents
 *   cc_state.h      state of sockets and slots, global state
 *   cc_window.h     windows and their correction
 *   cc_pacing.h     rates and leases
 *   cc_flowlet.h    beginning, end and stall of flowlets
 *   this file       the hooks of TCP, and the passes over sockets
 *
 * No hook's result matters, and none has to run. A kernel that passes over a program for a while takes
 * old stack for its result. The next hook that runs corrects it (cc_window.h), and events that the
 * hooks missed show in the socket's own numbers. There is no hook for the size of bursts:
 * a burst of no segments would leave an empty one at the head of the queue, which nothing can acknowledge.
 */
#include "cc_flowlet.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The kernel's cubic. */
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
/* Until Linux 7.0, and from Linux 7.1 on. */
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __weak __ksym;
extern void cubictcp_cwnd_event_tx_start(struct sock *sk) __weak __ksym;

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

/* Whether the socket is in the daemon's network namespace, or in that of one of its pods. */
static __always_inline bool is_in_our_namespaces(struct sock *sk)
{
	__u32 inum = sk->__sk_common.skc_net.net->ns.inum;

	return inum == netns_inum || (has_pods && bpf_map_lookup_elem(&pods, &inum));
}

/* Initialises the state of a socket that joins this congestion control. */
static __noinline void meet(struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	struct rw_flow *flow = flow_of(tp);
	struct rw_sock_storage *rare;

	cubictcp_init(sk);
	shared.cc_key = tp->inet_conn.icsk_ca_ops->key;
	flow->layout = FLOW_LAYOUT;
	flow->flags = 0;
	flow->own_max = NO_MAXIMUM;
	see_cwnd(tp, flow);
	/* New namespaces inherit the first one's default congestion control. */
	if (is_local(sk) || !is_in_our_namespaces(sk))
		flow->flags |= FLOW_UNMANAGED;
	/* Disconnected: it is met again when it is connected anew. */
	if (sk->__sk_common.skc_state == RW_TCP_CLOSE)
		return;
	/* It is back before a pass: what is in force is not the application's own maximum. */
	rare = bpf_sk_storage_get(&cold, tp, NULL, 0);
	if (rare && rare->left_max) {
		if (sk->sk_max_pacing_rate == rare->left_max) {
			flow->set_max = rare->left_max;
			flow->own_max = rare->left_own_max;
		}
		rare->left_max = 0;
	}
	if (tp->snd_una != tp->write_seq) {
		/* Taken over in the middle of a flowlet. */
		flow->flags |= FLOW_ACTIVE;
		flow->start_seq = tp->snd_una;
		flow->failed_tick = (bpf_ktime_get_ns() >> TICK_SHIFT) - 1;
		rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (rare)
			rare->start_ns = bpf_ktime_get_ns();
	}
}

/* First step of every hook: `rw_init` may not have run, and results may have got lost. */
static __always_inline struct rw_flow *enter(struct tcp_sock *tp)
{
	struct rw_flow *flow = flow_of(tp);

	if (!is_met(flow))
		meet(tp);
	mend_ssthresh(tp);
	mend_cwnd(tp, flow);
	return flow;
}

SEC("struct_ops/init")
void BPF_PROG(rw_init, struct sock *sk)
{
	meet((struct tcp_sock *)sk);
}

SEC("struct_ops/release")
void BPF_PROG(rw_release, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = flow_of(tp);
	__u32 use_count = flow->use_count;
	__u64 freed = owner_word(use_count + 1, SLOT_FREE);
	bool closed = sk->__sk_common.skc_state == RW_TCP_CLOSE;
	struct rw_slot *slot;

	/*
	 * Options cannot be set here: of a socket that lives on, a pass lifts the maximum. One that is
	 * disconnected, which no pass meets, may be connected anew: `meet` then knows the maximum.
	 */
	if (flow->set_max && (!closed || sk->sk_socket)) {
		struct rw_sock_storage *rare =
			bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);

		if (rare) {
			rare->left_max = flow->set_max;
			rare->left_own_max = flow->own_max;
			if (!closed)
				__sync_fetch_and_add(&shared.left_capped, 1);
		}
		/* Until then it is not enforced, unless the application has asked for pacing. */
		if ((flow->flags & FLOW_PACING_SET) && sk->sk_pacing_status == RW_SK_PACING_NEEDED)
			sk->sk_pacing_status = RW_SK_PACING_NONE;
	}
	if ((flow->flags & FLOW_LEASED) && is_paceable(flow))
		restart_window(tp, flow, false);
	flow->flags &= ~FLOW_LEASED;
	if (!flow->slot)
		return;
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
	struct rw_flow *flow = enter(tp);

	cubictcp_state(sk, new_state);
	/* The second time-out in a row: the peer may be gone. */
	if (new_state == TCP_CA_Loss && tp->inet_conn.icsk_retransmits &&
	    (flow->flags & FLOW_ACTIVE))
		stall(tp);
}

static __always_inline void tx_start(struct tcp_sock *tp, struct rw_flow *flow)
{
	on_tx_start(tp, flow);
	report_if_large(tp, flow);
	refresh(tp, flow);
}

SEC("struct_ops/cwnd_event")
void BPF_PROG(rw_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = enter(tp);

	if (bpf_ksym_exists(cubictcp_cwnd_event))
		cubictcp_cwnd_event(sk, event);
	if (event == CA_EVENT_TX_START)
		tx_start(tp, flow);
}

/* Linux 7.1 and later have this in the place of CA_EVENT_TX_START. */
SEC("struct_ops/cwnd_event_tx_start")
void BPF_PROG(rw_cwnd_event_tx_start, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = enter(tp);

	if (bpf_ksym_exists(cubictcp_cwnd_event_tx_start))
		cubictcp_cwnd_event_tx_start(sk);
	tx_start(tp, flow);
}

SEC("struct_ops/cong_avoid")
void BPF_PROG(rw_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = enter(tp);

	if ((flow->flags & FLOW_LEASED) && is_paceable(flow))
		return;
	cubictcp_cong_avoid(sk, ack, acked);
	/* Grown by packets delivered before the check above: the next hook may come without new ones. */
	see_cwnd(tp, flow);
}

SEC("struct_ops/pkts_acked")
void BPF_PROG(rw_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct rw_flow *flow = enter(tp);

	if (!(flow->flags & FLOW_LEASED) || !is_paceable(flow))
		cubictcp_acked(sk, sample);
	/* A beginning that no hook saw, or progress after a stall. */
	if (!(flow->flags & FLOW_ACTIVE)) {
		if (!tp->packets_out && tp->write_seq == tp->snd_nxt)
			return;
		begin_flowlet(tp);
	}
	report_if_large(tp, flow);
	report_revived(tp, flow);
	refresh(tp, flow);
	on_acked(tp, flow);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops rw_cc = {
	.init = (void *)rw_init,
	.release = (void *)rw_release,
	.ssthresh = (void *)rw_ssthresh,
	.undo_cwnd = (void *)rw_undo_cwnd,
	.set_state = (void *)rw_set_state,
	/* User space takes away the one that the kernel does not have. */
	.cwnd_event = (void *)rw_cwnd_event,
	.cwnd_event_tx_start = (void *)rw_cwnd_event_tx_start,
	.cong_avoid = (void *)rw_cong_avoid,
	.pkts_acked = (void *)rw_pkts_acked,
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
	struct rw_sock_storage *rare;

	if (!is_in_our_namespaces(sk))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || tp->inet_conn.icsk_ca_ops->key != shared.cc_key || !shared.cc_key)
		return 0;
	if (flow_of(tp)->flags & (FLOW_ACTIVE | FLOW_UNMANAGED))
		return 0;
	rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (rare && !rare->first_write_ns)
		rare->first_write_ns = bpf_ktime_get_ns();
	return 0;
}

/* Whether a socket has this congestion control. */
static __always_inline bool is_ours(struct tcp_sock *tp)
{
	return shared.cc_key && tp->inet_conn.icsk_ca_ops->key == shared.cc_key;
}

static __always_inline void set_maximum(struct tcp_sock *tp, __u32 value)
{
	bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &value, sizeof(value));
}

/* Gives a socket of this congestion control the application's own maximum in place of ours. */
static __always_inline void lift(struct tcp_sock *tp, const struct rw_flow *flow)
{
	if (is_met(flow) && flow->set_max &&
	    ((struct sock *)tp)->sk_max_pacing_rate == flow->set_max)
		set_maximum(tp, flow->own_max);
}

/* The same for a socket that has left this congestion control under a maximum of ours. */
static __always_inline void lift_left(struct tcp_sock *tp)
{
	struct rw_sock_storage *rare = bpf_sk_storage_get(&cold, tp, NULL, 0);

	if (!rare || !rare->left_max)
		return;
	if (((struct sock *)tp)->sk_max_pacing_rate == rare->left_max)
		set_maximum(tp, rare->left_own_max);
	rare->left_max = 0;
}

/*
 * Switches one socket to this congestion control. Sockets whose application has chosen another than
 * the namespace's default stay as they are. Sockets that have it since before their namespace was ours
 * are managed from now on.
 */
SEC("iter/tcp")
int rw_take_over(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	char name[RW_TCP_CA_NAME_MAX] = {};
	__u32 maximum = NO_MAXIMUM;
	struct rw_sock_storage *rare;
	struct rw_flow *flow;
	struct tcp_sock *tp;
	bool inherited;
	__u64 present;
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
	if (bpf_getsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)))
		return 0;
	flow = flow_of(tp);
	if (same_name(name, cc_name)) {
		/* It must be met anew; its state cannot be written here. */
		if (is_met(flow) && (flow->flags & FLOW_UNMANAGED)) {
			copy_name(name, default_cc);
			bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name));
			copy_name(name, cc_name);
			bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name));
		}
		return 0;
	}
	inherited = name[0] == 'r' && name[1] == 'w' && name[2] == '_';
	if (!inherited && tp->inet_conn.icsk_ca_setsockopt && !same_name(name, default_cc))
		return 0;
	if (inherited) {
		/*
		 * The application's own maximum, as a program that is gone has stored it. Whose the present
		 * one is cannot be read in another layout, unless that program has lifted its own.
		 */
		present = ((struct sock *)tp)->sk_max_pacing_rate;
		if (is_met(flow) && flow->set_max && present == flow->set_max)
			maximum = flow->own_max;
		else if ((is_met(flow) || lifted) && present < NO_MAXIMUM)
			maximum = present;
	} else {
		rare = bpf_sk_storage_get(&cold, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (rare)
			copy_name(rare->previous_cc, name);
	}
	copy_name(name, cc_name);
	if (bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)))
		__sync_fetch_and_add(&shared.switch_failed, 1);
	else if (state == RW_TCP_ESTABLISHED)
		__sync_fetch_and_add(&shared.adopted, 1);
	if (inherited)
		set_maximum(tp, maximum);
	return 0;
}

/*
 * Checks one socket: lifts the maximum of a lapsed lease although the socket rests and no hook runs,
 * or although it has left this congestion control; and marks its slot as used.
 */
SEC("iter/tcp")
int rw_look_over(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	__u64 wire, now = bpf_ktime_get_ns();
	struct rw_slot *slot = NULL;
	struct rw_flow *flow;
	struct tcp_sock *tp;

	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp || common->skc_state == RW_TCP_LISTEN)
		return 0;
	if (!is_ours(tp)) {
		lift_left(tp);
		return 0;
	}
	flow = flow_of(tp);
	if (!is_met(flow))
		return 0;
	if (flow->slot)
		slot = slot_of(flow);
	if (slot && load(&slot->owner) >> 32 == flow->use_count)
		slot->met_pass = load(&shared.pass);
	if (!(slot && is_leased(flow, slot, now, &wire)))
		lift(tp, flow);
	return 0;
}

/*
 * Lifts every maximum, for the daemon that follows a killed one: only the program that has set them can
 * read whose they were, whatever the version of the next. No rate of its own is in force from here on.
 */
SEC("iter/tcp")
int rw_lift(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp;

	*(volatile __u64 *)&shared.generation = NO_GENERATION;
	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	if (is_ours(tp))
		lift(tp, flow_of(tp));
	else
		lift_left(tp);
	return 0;
}

/* Switches one socket back to its former congestion control. */
SEC("iter/tcp")
int rw_give_back(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	char name[RW_TCP_CA_NAME_MAX] = {};
	struct rw_sock_storage *rare;
	struct tcp_sock *tp;

	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	if (bpf_getsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)) ||
	    !same_name(name, cc_name)) {
		lift_left(tp);
		return 0;
	}
	lift(tp, flow_of(tp));
	rare = bpf_sk_storage_get(&cold, tp, NULL, 0);
	if (rare && rare->previous_cc[0])
		copy_name(name, rare->previous_cc);
	else
		copy_name(name, default_cc);
	if (bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_CONGESTION, name, sizeof(name)))
		__sync_fetch_and_add(&shared.switch_failed, 1);
	return 0;
}
