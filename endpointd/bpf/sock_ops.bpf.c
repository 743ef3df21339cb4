// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Back end `sock_ops`: a cgroup program that notices flowlets in a socket's callbacks and paces it
 * with SO_MAX_PACING_RATE.
 *
 * A rate is a maximum over the congestion control that the socket has, and nothing else: window, losses,
 * marks and time-outs do to it what they would do without us (flowtune §5.1 leaves TCP's slow start and its
 * reaction to loss as they are). Two masters, and the stricter wins.
 *
 * A rate limits a flow only if the flow uses it (`keep_schedule`). A flow whose demand was lowered to its use
 * is not held at all: it is watched, and told at once when it has used up its rate (LIMITED). It then
 * runs on as plain TCP, like a flow that has just begun, until the allocator has answered.
 *
 *   callback                           used for
 *   ACTIVE/PASSIVE_ESTABLISHED         the socket's storage and its callback flags
 *   HDR_OPT_LEN (no byte is reserved)  at each write, each transmission, and each acknowledgement with
 *                                      more to send: start, use, stall, rate, expiry
 *   RTT                                once a round: rate, expiry
 *   RTO                                a peer that does not answer: end
 *   TSTAMP_SENDMSG, TSTAMP_ACK         the last byte of a write was acknowledged: end
 *   STATE                              close
 *
 * The timestamp callbacks may not set socket options; the others hold the socket's lock and may.
 * A rate whose lease has run out is lifted by the program itself, so that a daemon that was killed
 * leaves plain TCP behind (flowtune §6, fault-tolerance).
 *
 * The program may be skipped at any callback. What it returns matters to none of them, and it writes
 * one thing: the socket's maximum pacing rate. That is lifted whenever nothing waits to be sent, so
 * that a socket that goes idle has none; one that stayed is lifted at the next transmission.
 */
#include "kernel.h"
#include "flow.h"
#include "slots.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Not in the headers of every build machine. */
#define RW_TSTAMP_ACK_CB 19
#define RW_TSTAMP_SENDMSG_CB 20
#define RW_TCP_BPF_SOCK_OPS_CB_FLAGS 1008
#define RW_SK_BPF_CB_FLAGS 1009
#define RW_SK_BPF_CB_TX_TIMESTAMPING 1
#define RW_TCP_SYN_SENT 2
#define RW_TCP_SYN_RECV 3
#define RW_TCP_FIN_WAIT1 4
#define RW_TCP_TIME_WAIT 6
#define RW_TCP_LAST_ACK 9
#define RW_TCP_CLOSING 11
#define RW_TCP_NEW_SYN_RECV 12
#define RW_ETH_HEADER 14
/* TCP does not pace a connection's first segments. */
#define RW_UNPACED_SEGS 10
/* More than this waits only below a sender that its rate limits, however fast. */
#define RW_HELD_BYTES 65536
/* A socket that TCP has never paced gets a maximum once it delivers all but 1/8 of it. */
#define RW_REACHED_SHIFT 3
/*
 * How far a flow may be behind or ahead of its rate and be remembered for it: so many of its own bursts, TCP's
 * initial window (RFC 6928), or what its rate sends in this time. Four bursts outlast the pauses of a queue
 * below the socket, which lets two packets of a sender in at a time.
 */
#define RW_TOLERATED_BURSTS 4
#define RW_TOLERATED_NS 1000000
/*
 * A flow that its rate paces uses at least 15/16 of it, in spite of late timers. A lowered demand is 9/8 of
 * the use, of which the use is 8/9: the flow is on the other side.
 */
#define RW_LATE_SHIFT 4
/* How long a flow that met its rate waits for the allocator's answer; a rate takes 0.3 ms there and back. */
#define RW_ANSWER_NS 4000000
/* A connection whose flowlet was ended gives its slot back after this long. */
#define RW_QUIET_NS 1000000000ULL
/*
 * A socket that is faster than its application empties its backlog many thousand times a second:
 * one IDLE, and the RESUME to it, per socket and this time. User space looks at the state for what
 * was left out (`SlotTable::report_omitted_idles`).
 */
#define RW_FLAP_NS 1000000

#define RW_CB_FLAGS                                                                     \
	(BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG | \
	 BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)

#define NSEC_PER_SEC 1000000000ULL
#define USEC_PER_SEC 1000000ULL
#define NO_LIMIT (~0ULL)
/* SO_MAX_PACING_RATE has 32 bits here, and all of them set mean "none". */
#define MAX_PACING (~0U - 1)

/* Constants that user space sets before loading. */
const volatile __u64 rw_netns_cookie = 0;
const volatile __u64 rw_cgroup_id = 0;
const volatile __u64 rw_min_flowlet_bytes = 1;
const volatile __u32 rw_take_over = 1;
/* Sockets of other network namespaces than the daemon's own may be paced, too. */
const volatile bool rw_has_pods = false;

/* Cookies of those namespaces; written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u8);
} so_pods SEC(".maps");

/* Per socket. */
struct so_sock {
	/* write_seq when the backlog was last seen empty; `stalled`: snd_nxt when it stalled. */
	__u32 base_seq;
	__u32 slot;
	__u32 use_count;
	/* `rw_slot_rate.clears` when the flowlet was reported. */
	__u32 clears;
	/* When the first write since the backlog was empty was seen, and the reported flowlet's. */
	__u64 first_ns;
	__u64 start_ns;
	/* When the backlog became empty, and when that was last reported. */
	__u64 rest_ns;
	__u64 idle_ns;
	/* The application's own maximum while ours is in force. */
	__u64 app_max;
	/* Maximum that this program set last, in bytes/s; 0: none is in force. */
	__u64 applied;
	/* The application's own maximum that user space was last told, and when. */
	__u64 told_max;
	__u64 told_ns;
	/* The valid rate, in bytes of payload per second. */
	__u64 limit;
	/* When the rate allows the next transmission. */
	__u64 due_ns;
	/* Until when the answer to a LIMITED may come, and the rate before it. */
	__u64 answer_ns;
	__u64 unanswered_wire;
	/* Largest transmission of late. */
	__u32 burst;
	__u8 phase;
	__u8 first_paced_due;
	/* A valid rate was seen, and its end not yet. */
	__u8 rated;
	/* The rate is less than the application's own maximum. */
	__u8 binds;
	/* The flow is not held: its demand was lowered, or it waits for the answer to a LIMITED. */
	__u8 watched;
	/* The flow has used more than its rate by all that is remembered. */
	__u8 far_ahead;
	/* The backlog was stuck behind a closed window or a silent peer since it was last empty. */
	__u8 stalled;
	/* The socket's counters when they were last added to `wire_bytes`. */
	__u32 counted_segs;
	__u64 counted_bytes;
	/* Sent so far, headers and tunnels included. */
	__u64 wire_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct so_sock);
} so_socks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot_rate);
} so_rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot_state);
} so_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot_counters);
} so_counts SEC(".maps");

/* First in, first out: a slot rests as long as possible before it is used again. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, __u32);
} so_free SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16); /* Sized when loaded, like the maps by slot. */
} so_events SEC(".maps");

struct bpf_sock_ops_kern {
	__u8 op;
} __attribute__((preserve_access_index));

struct cgroup_subsys_state___rw {
	struct cgroup___rw *cgroup;
	struct cgroup_subsys_state___rw *parent;
} __attribute__((preserve_access_index));

struct cgroup___rw {
	struct cgroup_subsys_state___rw self;
	struct kernfs_node *kn;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __weak __ksym;
extern int bpf_sock_ops_enable_tx_tstamp(struct bpf_sock_ops_kern *skops, __u64 flags) __weak __ksym;

static __always_inline struct rw_slot_counters *counters(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&so_counts, &zero);
}

#define COUNT(member)                                                                   \
	do {                                                                            \
		struct rw_slot_counters *counts = counters();                                \
		if (counts)                                                             \
			__sync_fetch_and_add(&counts->member, 1);                       \
	} while (0)

static __always_inline void map_v4(__u8 *out, __be32 address)
{
	__u32 *words = (__u32 *)out;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = address;
}

static __always_inline void fill_facts(struct rw_event *event, struct tcp_sock *tp)
{
	struct inet_sock *inet = &tp->inet_conn.icsk_inet;
	struct sock *sk = &inet->sk;

	event->src_port = sk->__sk_common.skc_num;
	event->dst_port = bpf_ntohs(sk->__sk_common.skc_dport);
	event->mark = sk->sk_mark;
	event->cgroup_id = BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
	event->dscp = inet->tos >> 2;
	if (sk->__sk_common.skc_family == RW_AF_INET6) {
		__u32 *src = (__u32 *)event->src_addr;
		__u32 *dst = (__u32 *)event->dst_addr;

		src[0] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		src[1] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		src[2] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		src[3] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[3];
		dst[0] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0];
		dst[1] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1];
		dst[2] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2];
		dst[3] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[3];
		/* A mapped address travels as IPv4 and is marked by the IPv4 field. */
		if (src[0] || src[1] || src[2] != bpf_htonl(0xffff))
			event->dscp = BPF_CORE_READ(inet, pinet6, tclass) >> 2;
	} else {
		map_v4(event->src_addr, sk->__sk_common.skc_rcv_saddr);
		map_v4(event->dst_addr, sk->__sk_common.skc_daddr);
	}
}

/* Queues an event; returns whether it found room. `tp` is only read for START. */
static __always_inline bool emit(struct so_sock *st, struct tcp_sock *tp, __u8 kind, __u64 now,
				 __u64 value)
{
	struct rw_event *event = bpf_ringbuf_reserve(&so_events, sizeof(*event), 0);

	if (!event) {
		COUNT(events_lost);
		return false;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->at_ns = now;
	event->slot = st->slot;
	event->use_count = st->use_count;
	event->kind = kind;
	event->value = value;
	if (tp)
		fill_facts(event, tp);
	bpf_ringbuf_submit(event, 0);
	return true;
}

/* The application's own maximum, also while the program's is in force. */
static __always_inline __u64 application_max(struct so_sock *st, struct tcp_sock *tp)
{
	__u64 present = tp->inet_conn.icsk_inet.sk.sk_max_pacing_rate;

	/* A value that this program did not set is the application's newest wish. */
	if (st->applied && present == st->applied)
		return st->app_max;
	return present;
}

static __always_inline bool take_slot(struct so_sock *st)
{
	struct rw_slot_state *state;
	__u32 slot;

	if (bpf_map_pop_elem(&so_free, &slot))
		return false;
	state = bpf_map_lookup_elem(&so_states, &slot);
	if (!state)
		return false;
	st->use_count = state->uses;
	state->uses += 1;
	state->phase = RW_PHASE_QUIET;
	state->limited_ns = 0;
	state->capped = 0;
	st->slot = slot;
	COUNT(connections);
	return true;
}

static __always_inline void give_slot(struct so_sock *st, __u64 now)
{
	struct rw_slot_state *state;
	struct rw_slot_counters *counts;
	__u32 slot = st->slot;

	if (slot == RW_NO_SLOT)
		return;
	state = bpf_map_lookup_elem(&so_states, &slot);
	if (state) {
		state->phase = RW_PHASE_FREE;
		state->last_ns = now;
		state->capped = 0;
	}
	emit(st, 0, RW_EVENT_CLOSE, now, 0);
	st->slot = RW_NO_SLOT;
	bpf_map_push_elem(&so_free, &slot, 0);
	counts = counters();
	if (counts)
		__sync_fetch_and_add(&counts->connections, -1);
}

static __always_inline void set_phase(struct so_sock *st, struct rw_slot_state *state, __u8 phase)
{
	st->phase = phase;
	if (state)
		state->phase = phase;
}

/* Bytes that are written and not acknowledged; a FIN takes a sequence number and is none. */
static __always_inline __u32 backlog(struct tcp_sock *tp)
{
	__u32 unacked = tp->write_seq - tp->snd_una;

	switch (tp->inet_conn.icsk_inet.sk.__sk_common.skc_state) {
	case RW_TCP_FIN_WAIT1:
	case RW_TCP_LAST_ACK:
	case RW_TCP_CLOSING:
		return unacked ? unacked - 1 : 0;
	}
	return unacked;
}

/*
 * Whether the peer lets nothing through: its window is closed to what comes next and nothing is on its
 * way, or two time-outs in a row brought no answer.
 */
static __always_inline bool stuck(struct tcp_sock *tp, bool timed_out_again)
{
	__u32 unsent = tp->write_seq - tp->snd_nxt;
	__u32 next = tp->mss_cache;

	if (timed_out_again || tp->inet_conn.icsk_retransmits >= 2)
		return true;
	if (next > unsent)
		next = unsent;
	return next && !tp->packets_out && (__s32)(tp->snd_una + tp->snd_wnd - tp->snd_nxt) < (__s32)next;
}

/* Follows the backlog. `timed_out_again`: for the second time in a row. */
static __always_inline void detect(struct so_sock *st, struct tcp_sock *tp, __u64 now,
				   bool timed_out_again)
{
	__u32 write_seq = tp->write_seq;
	struct rw_slot_state *state = 0;
	struct rw_slot_rate *rate = 0;
	__u32 slot = st->slot;
	bool empty;

	if (slot != RW_NO_SLOT) {
		state = bpf_map_lookup_elem(&so_states, &slot);
		rate = bpf_map_lookup_elem(&so_rates, &slot);
		if (state && st->phase == RW_PHASE_ACTIVE)
			state->last_ns = now;
	}
	empty = !backlog(tp);
	if (empty || stuck(tp, timed_out_again)) {
		/* After a stall it takes bytes that were sent: a reader of one byte a second is no flowlet. */
		if (empty)
			st->base_seq = write_seq;
		else if (!st->stalled)
			st->base_seq = tp->snd_nxt;
		st->stalled = !empty;
		st->first_ns = now;
		if (st->phase != RW_PHASE_ACTIVE)
			return;
		/* Even if the event is lost: user space then compares with the state. */
		set_phase(st, state, RW_PHASE_RESTING);
		st->rest_ns = now;
		if (now - st->idle_ns >= RW_FLAP_NS) {
			st->idle_ns = now;
			emit(st, 0, RW_EVENT_IDLE, now, 0);
		}
		return;
	}
	if (st->phase == RW_PHASE_ACTIVE)
		return;
	if (st->phase == RW_PHASE_RESTING) {
		if (rate && rate->clears == st->clears) {
			if ((st->rest_ns != st->idle_ns && now - st->rest_ns < RW_FLAP_NS) ||
			    emit(st, 0, RW_EVENT_RESUME, now, 0))
				set_phase(st, state, RW_PHASE_ACTIVE);
			return;
		}
		set_phase(st, state, RW_PHASE_QUIET);
	}
	if ((st->stalled ? tp->snd_nxt : write_seq) - st->base_seq < rw_min_flowlet_bytes)
		return;
	if (slot == RW_NO_SLOT) {
		if (!take_slot(st)) {
			/* Counted once for each flowlet: the next try waits for an empty backlog. */
			COUNT(table_full);
			st->base_seq = write_seq;
			return;
		}
		slot = st->slot;
		state = bpf_map_lookup_elem(&so_states, &slot);
		rate = bpf_map_lookup_elem(&so_rates, &slot);
	}
	/* User space takes a slot that has long been quiet for one without a flowlet. */
	if (state)
		state->last_ns = now;
	st->told_max = application_max(st, tp);
	st->told_ns = now;
	if (!emit(st, tp, RW_EVENT_START, now, st->told_max))
		return;
	if (rate)
		st->clears = rate->clears;
	st->first_paced_due = 1;
	st->stalled = 0;
	/* A flowlet's first end is always reported. */
	st->idle_ns = 0;
	st->start_ns = st->first_ns;
	set_phase(st, state, RW_PHASE_ACTIVE);
}

/* Bytes of a segment on the wire beside its payload; `rate`: of the socket's slot, if it has one. */
static __always_inline __u32 wire_header(struct tcp_sock *tp, struct rw_slot_rate *rate)
{
	__u32 ip = tp->inet_conn.icsk_inet.sk.__sk_common.skc_family == RW_AF_INET6 ? 40 : 20;

	return RW_ETH_HEADER + ip + tp->tcp_header_len + (rate ? rate->tunnel_bytes : 0);
}

/* Bytes of payload per second that fill `wire` bytes per second in segments of full size. */
static __always_inline __u64 payload_rate(struct tcp_sock *tp, struct rw_slot_rate *rate, __u64 wire)
{
	__u64 mss = tp->mss_cache;

	return mss ? wire * mss / (mss + wire_header(tp, rate)) : wire;
}

/*
 * Follows when the rate allows transmissions. A flow that could have sent and did not falls behind, one that
 * uses up its rate is ahead. `sending`: payload that is sent now.
 */
static __always_inline void keep_schedule(struct so_sock *st, struct tcp_sock *tp, __u64 now,
					  __u32 sending)
{
	__u64 pace = st->watched ? st->limit : st->limit - (st->limit >> RW_LATE_SHIFT);
	__u64 tolerated = RW_UNPACED_SEGS * tp->mss_cache;

	if (tolerated < RW_TOLERATED_BURSTS * (__u64)st->burst)
		tolerated = RW_TOLERATED_BURSTS * (__u64)st->burst;
	tolerated = tolerated * NSEC_PER_SEC / pace;
	if (tolerated < RW_TOLERATED_NS)
		tolerated = RW_TOLERATED_NS;
	if (st->due_ns + tolerated < now)
		st->due_ns = now - tolerated;
	st->due_ns += sending * NSEC_PER_SEC / pace;
	st->far_ahead = st->due_ns > now + tolerated;
	if (st->far_ahead)
		st->due_ns = now + tolerated;
	if (sending > st->burst)
		st->burst = sending;
	else if (sending)
		st->burst -= st->burst >> 3;
}

/*
 * Whether losses or marks have left the flow a smaller window than a new one has, and than its rate sends in a
 * millisecond. A maximum would keep it small: TCP opens a window that is used up, which a paced flow's hardly is,
 * until two segments are left and each loss is a time-out. (A loss of 1 % leaves CUBIC 120 of the 194 Mbit/s of
 * its maximum, and 190 without one.) So such a flow is not held: what it sends too much is that window at most.
 */
static __always_inline bool has_small_window(struct so_sock *st, struct tcp_sock *tp)
{
	__u64 needs = st->limit * RW_TOLERATED_NS / NSEC_PER_SEC;

	return tp->snd_cwnd < RW_UNPACED_SEGS && (__u64)tp->snd_cwnd * tp->mss_cache < needs;
}

/*
 * Whether the rate, and nothing else, keeps data from leaving: the flow has used its rate, and the peer's and
 * the congestion window have room for a full segment. A flow that is held also has to be: TCP's pacing holds
 * it, and nothing waits in a queue below. What the rate sends within a millisecond is not held up: an
 * application that waited for its core for a moment writes as much at once. A watched flow that is far ahead
 * has outgrown its rate, whatever TCP waits for. `sending`: payload of the transmission that this callback is a
 * part of; pacing begins with its end, unless the device's queue is what TCP waits for.
 */
static __always_inline bool limited(struct so_sock *st, struct tcp_sock *tp, __u64 now, __u32 sending)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u32 in_flight = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	__u32 next = tp->snd_nxt + sending;
	__u32 mss = tp->mss_cache, held;

	if (!st->rated || !st->binds || !mss || st->due_ns <= now)
		return false;
	held = st->limit >= 1000ULL * RW_HELD_BYTES ? RW_HELD_BYTES : st->limit / 1000;
	if (held < mss)
		held = mss;
	if (st->watched && st->far_ahead)
		return true;
	if ((__s32)(tp->write_seq - next) < (__s32)held ||
	    (__s32)(tp->snd_una + tp->snd_wnd - next) < (__s32)mss)
		return false;
	if (in_flight + (sending + mss - 1) / mss >= tp->snd_cwnd)
		return false;
	if (st->watched)
		return true;
	if (!st->applied || sk->sk_pacing_rate < st->applied)
		return false;
	if (sending)
		return tp->data_segs_out >= RW_UNPACED_SEGS && sk->sk_wmem_alloc.refs.counter <= 1;
	return tp->tcp_wstamp_ns > now;
}

/*
 * Whether the application has more to send than plain TCP lets out. Asked when an acknowledgement has come
 * and nothing was sent for it yet: what waits then waits for TCP. What TCP sends within a millisecond is
 * not held up, as above.
 */
static __always_inline bool backlogged(struct tcp_sock *tp)
{
	__u64 rate = tp->inet_conn.icsk_inet.sk.sk_pacing_rate;
	__u32 mss = tp->mss_cache;
	__u32 held = rate >= 1000ULL * RW_HELD_BYTES ? RW_HELD_BYTES : rate / 1000;

	if (held < mss)
		held = mss;
	return mss && (__s32)(tp->write_seq - tp->snd_nxt) >= (__s32)held &&
	       (__s32)(tp->snd_una + tp->snd_wnd - tp->snd_nxt) >= (__s32)mss;
}

/*
 * Records for user space the use of the connection, and whether its rate limits it; while rates are only
 * observed, whether TCP does (`acked`: an acknowledgement has just come).
 */
static __always_inline void note_use(struct so_sock *st, struct tcp_sock *tp, __u64 now, bool paces,
				     __u32 sending, bool acked)
{
	struct rw_slot_counters *counts = counters();
	__u64 bytes = tp->bytes_sent, watch, wire;
	__u32 segs = tp->data_segs_out;
	__u32 slot = st->slot;
	struct rw_slot_state *state;
	struct rw_slot_rate *rate = 0;

	if (slot != RW_NO_SLOT)
		rate = bpf_map_lookup_elem(&so_rates, &slot);
	st->wire_bytes += bytes - st->counted_bytes +
			  (__u64)(__u32)(segs - st->counted_segs) * wire_header(tp, rate);
	st->counted_bytes = bytes;
	st->counted_segs = segs;
	if (slot == RW_NO_SLOT)
		return;
	state = bpf_map_lookup_elem(&so_states, &slot);
	if (!state || !rate)
		return;
	state->sent_bytes = st->wire_bytes;
	state->acked_bytes = tp->bytes_acked;
	state->capped = st->applied != 0;
	state->round_trip_us = tp->srtt_us >> 3;
	if (st->phase != RW_PHASE_ACTIVE || !paces)
		return;
	if (counts && *(volatile __u64 *)&counts->observing) {
		if (!acked || !backlogged(tp))
			return;
	} else if (!limited(st, tp, now, sending)) {
		return;
	}
	state->limited_ns = now;
	watch = *(volatile __u64 *)&rate->watch;
	wire = *(volatile __u64 *)&rate->wire_bytes_per_s;
	/* One question at a time. */
	if (watch != RW_WATCHES(st->use_count) ||
	    (now < st->answer_ns && wire == st->unanswered_wire) ||
	    __sync_val_compare_and_swap(&rate->watch, watch, 0) != watch)
		return;
	st->answer_ns = now + RW_ANSWER_NS;
	st->unanswered_wire = wire;
	if (!emit(st, 0, RW_EVENT_LIMITED, now, 0))
		rate->watch = watch;
}

/* Tells user space when the application has changed its own maximum. */
static __always_inline void tell_own_max(struct so_sock *st, __u64 wish, __u64 now)
{
	if (wish == st->told_max || st->phase != RW_PHASE_ACTIVE || now - st->told_ns < RW_FLAP_NS)
		return;
	st->told_ns = now;
	if (emit(st, 0, RW_EVENT_OWN_MAX, now, wish))
		st->told_max = wish;
}

static __always_inline int set_max(void *target, __u64 bytes_per_s)
{
	__u32 value = bytes_per_s > MAX_PACING ? ~0U : (__u32)bytes_per_s;

	return bpf_setsockopt(target, RW_SOL_SOCKET, RW_SO_MAX_PACING_RATE, &value, sizeof(value));
}

/* Gives the socket back the application's own maximum. */
static __always_inline void lift(void *target, struct so_sock *st, struct tcp_sock *tp)
{
	__u64 wish = application_max(st, tp);

	if (st->applied && !set_max(target, wish))
		st->applied = 0;
}

/*
 * Whether a socket without our maximum could exceed it. Any maximum makes TCP pace by itself from then on, at 1.2
 * to 2 windows per smoothed round-trip time. A first round-trip time that is far too long (a neighbour had to be
 * found) would then slow the samples that correct it. And cubic leaves slow start later if it is paced (HyStart's
 * threshold for trains of acknowledgements doubles): where the path carries less than the rate, a flow with a
 * maximum would have more than its neighbours for as long as a deep queue remembers.
 */
static __always_inline bool reaches(struct tcp_sock *tp, __u64 limit)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 delivered = (__u64)tp->rate_delivered * tp->mss_cache;

	if (sk->sk_pacing_rate < limit)
		return false;
	return sk->sk_pacing_status != RW_SK_PACING_NONE ||
	       delivered * USEC_PER_SEC > (limit - (limit >> RW_REACHED_SHIFT)) * tp->rate_interval_us;
}

/*
 * Puts the slot's rate in force, or lifts it. `target`: what bpf_setsockopt takes here; `writes`: the
 * socket is about to queue or send something.
 */
static __always_inline void pace(void *target, struct so_sock *st, struct tcp_sock *tp, __u64 now,
				 bool writes, __u32 sending)
{
	__u64 expires, wish, limit, wire;
	struct rw_slot_rate *rate;
	__u32 slot = st->slot;
	bool runs_free;

	if (slot == RW_NO_SLOT)
		return;
	rate = bpf_map_lookup_elem(&so_rates, &slot);
	if (!rate)
		return;
	wish = application_max(st, tp);
	tell_own_max(st, wish, now);
	expires = *(volatile __u64 *)&rate->expires_ns;
	if (!expires || now >= expires || rate->use_count != st->use_count) {
		if (expires && rate->use_count == st->use_count && st->rated)
			COUNT(expired);
		st->rated = 0;
		if (st->applied)
			lift(target, st, tp);
		return;
	}
	st->rated = 1;
	wire = *(volatile __u64 *)&rate->wire_bytes_per_s;
	limit = payload_rate(tp, rate, wire);
	if (limit < RW_MIN_BYTES_PER_S)
		limit = RW_MIN_BYTES_PER_S;
	st->limit = limit;
	st->binds = limit < wish;
	st->watched = *(volatile __u64 *)&rate->watch == RW_WATCHES(st->use_count) ||
		      (now < st->answer_ns && wire == st->unanswered_wire);
	keep_schedule(st, tp, now, sending);
	runs_free = st->watched || has_small_window(st, tp);
	if (runs_free || (!writes && tp->write_seq == tp->snd_nxt)) {
		/* Nothing is to be held, or nothing waits: a write comes here before any of it is sent. */
		if (st->applied)
			lift(target, st, tp);
		if (!runs_free)
			return;
	}
	if (limit > wish)
		limit = wish;
	if (limit > MAX_PACING)
		limit = NO_LIMIT;
	if (runs_free || (!st->applied && !reaches(tp, limit)))
		st->app_max = wish;
	else if (limit != st->applied || tp->inet_conn.icsk_inet.sk.sk_max_pacing_rate != limit) {
		if (set_max(target, limit))
			return;
		st->app_max = wish;
		st->applied = limit;
	}
	if (sending && st->first_paced_due) {
		st->first_paced_due = 0;
		emit(st, 0, RW_EVENT_FIRST_PACED, now, now - st->start_ns);
	}
}

/* Starts to follow a socket; its present backlog counts as the flowlet's first bytes. */
static __always_inline struct so_sock *follow(void *sk, struct tcp_sock *tp, __u64 now)
{
	struct so_sock fresh = {
		.base_seq = tp->snd_una,
		.slot = RW_NO_SLOT,
		.first_ns = now,
		.counted_segs = tp->data_segs_out,
		.counted_bytes = tp->bytes_sent,
	};

	return bpf_sk_storage_get(&so_socks, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

static __always_inline void on_established(struct bpf_sock_ops *ctx)
{
	__u32 flags = RW_SK_BPF_CB_TX_TIMESTAMPING;
	struct bpf_sock *sk = ctx->sk;
	__u64 cookie = bpf_get_netns_cookie(ctx);
	struct tcp_sock *tp;

	if (!sk)
		return;
	if (cookie != rw_netns_cookie && !(rw_has_pods && bpf_map_lookup_elem(&so_pods, &cookie)))
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !follow(sk, tp, bpf_ktime_get_ns()))
		return;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | RW_CB_FLAGS);
	/* Older kernels have no transmit timestamps: user space then looks for ends (rw_adopt). */
	if (!bpf_setsockopt(ctx, RW_SOL_SOCKET, RW_SK_BPF_CB_FLAGS, &flags, sizeof(flags))) {
		struct rw_slot_counters *counts = counters();

		if (counts && !counts->timestamps)
			counts->timestamps = 1;
	}
}

SEC("sockops")
int rw_sock_ops(struct bpf_sock_ops *ctx)
{
	struct so_sock *st;
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	__u32 op = ctx->op, sending = 0;
	bool sets;
	__u64 now;

	switch (op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_established(ctx);
		return 1;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
	case BPF_SOCK_OPS_RTT_CB:
	case BPF_SOCK_OPS_RTO_CB:
	case BPF_SOCK_OPS_STATE_CB:
	case RW_TSTAMP_SENDMSG_CB:
	case RW_TSTAMP_ACK_CB:
		break;
	default:
		return 1;
	}
	sk = ctx->sk;
	if (!sk)
		return 1;
	st = bpf_sk_storage_get(&so_socks, sk, 0, 0);
	if (!st)
		return 1;
	now = bpf_ktime_get_ns();
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 1;
	if (op == BPF_SOCK_OPS_STATE_CB && ctx->args[1] == RW_TCP_CLOSE) {
		/* The socket may be connected anew. */
		if (st->applied)
			lift(ctx, st, tp);
		give_slot(st, now);
		st->phase = RW_PHASE_QUIET;
		return 1;
	}
	sets = op != RW_TSTAMP_SENDMSG_CB && op != RW_TSTAMP_ACK_CB;
	/* A write's look at the options has no packet; a transmission's has. */
	if (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		sending = ctx->skb_len;
	/* The first argument is how many time-outs in a row there were before this one. */
	detect(st, tp, now, op == BPF_SOCK_OPS_RTO_CB && ctx->args[0]);
	/* Only a reported flowlet's end is waited for. */
	if (op == RW_TSTAMP_SENDMSG_CB && st->phase == RW_PHASE_ACTIVE &&
	    bpf_sock_ops_enable_tx_tstamp && bpf_cast_to_kern_ctx)
		bpf_sock_ops_enable_tx_tstamp(bpf_cast_to_kern_ctx(ctx), 0);
	if (sets)
		pace(ctx, st, tp, now, op == BPF_SOCK_OPS_HDR_OPT_LEN_CB, sending);
	note_use(st, tp, now, sets, sending, op == BPF_SOCK_OPS_RTT_CB);
	return 1;
}

/* Whether the socket's cgroup is the configured one or below it. */
static __always_inline bool in_cgroup(struct sock *sk)
{
	struct cgroup___rw *cgroup = (void *)BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	int depth;

	for (depth = 0; depth < 32 && cgroup; depth++) {
		struct cgroup_subsys_state___rw *parent;

		if (BPF_CORE_READ(cgroup, kn, id) == rw_cgroup_id)
			return true;
		parent = BPF_CORE_READ(cgroup, self.parent);
		cgroup = parent ? BPF_CORE_READ(parent, cgroup) : 0;
	}
	return false;
}

/* Gives the slot of a connection back that has been quiet since its flowlet was ended. */
static __always_inline void give_back_quiet(struct so_sock *st, __u64 now)
{
	struct rw_slot_state *state;
	struct rw_slot_rate *rate;
	__u32 slot = st->slot;

	if (slot == RW_NO_SLOT || st->applied || st->phase == RW_PHASE_ACTIVE)
		return;
	state = bpf_map_lookup_elem(&so_states, &slot);
	rate = bpf_map_lookup_elem(&so_rates, &slot);
	if (state && rate && rate->clears != st->clears && now - state->last_ns >= RW_QUIET_NS) {
		give_slot(st, now);
		st->phase = RW_PHASE_QUIET;
	}
}

/* Takes over existing sockets, and checks those that are followed. */
SEC("iter/tcp")
int rw_adopt(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct so_sock *st;
	struct tcp_sock *tp;
	__u64 now;
	int flags = 0;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	switch (skc->skc_state) {
	case RW_TCP_LISTEN:
	case RW_TCP_CLOSE:
	case RW_TCP_TIME_WAIT:
	case RW_TCP_NEW_SYN_RECV:
	case RW_TCP_SYN_SENT:
	case RW_TCP_SYN_RECV:
		return 0;
	}
	now = bpf_ktime_get_ns();
	st = bpf_sk_storage_get(&so_socks, tp, 0, 0);
	if (!st) {
		if (!rw_take_over || !in_cgroup((struct sock *)tp))
			return 0;
		/* Other products' flags stay. */
		if (bpf_getsockopt(tp, RW_SOL_TCP, RW_TCP_BPF_SOCK_OPS_CB_FLAGS, &flags,
				   sizeof(flags)))
			return 0;
		flags |= RW_CB_FLAGS;
		/*
		 * Linux before 6.12 gives a connection from before no callbacks. Nothing would lift its
		 * maximum once the daemon is gone: it stays plain TCP.
		 */
		if (bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
			return 0;
		st = follow(tp, tp, now);
		if (!st)
			return 0;
		flags = RW_SK_BPF_CB_TX_TIMESTAMPING;
		bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SK_BPF_CB_FLAGS, &flags, sizeof(flags));
		COUNT(adopted);
	}
	detect(st, tp, now, false);
	pace(tp, st, tp, now, false, 0);
	note_use(st, tp, now, true, 0, false);
	give_back_quiet(st, now);
	return 0;
}

/* Reports running flowlets again, for a daemon that is new to them. */
SEC("iter/tcp")
int rw_report(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct so_sock *st;
	struct tcp_sock *tp;
	struct rw_slot_state *state;
	__u32 slot;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	st = bpf_sk_storage_get(&so_socks, tp, 0, 0);
	if (!st)
		return 0;
	slot = st->slot;
	state = slot == RW_NO_SLOT ? 0 : bpf_map_lookup_elem(&so_states, &slot);
	set_phase(st, state, RW_PHASE_QUIET);
	/* The bytes of the flowlet so far were enough for the daemon before. */
	st->base_seq = tp->write_seq - (__u32)rw_min_flowlet_bytes;
	st->stalled = 0;
	st->first_ns = bpf_ktime_get_ns();
	COUNT(adopted);
	return 0;
}

/*
 * Gives every followed socket back: its own maximum, no callbacks, no storage. Flags do not tell who has
 * set them. Where another product's program may have, all stay: without a program they do nothing.
 */
SEC("iter/tcp")
int rw_release(struct bpf_iter__tcp *ctx)
{
	struct rw_slot_counters *counts = counters();
	bool alone = counts && *(volatile __u64 *)&counts->alone;
	struct sock_common *skc = ctx->sk_common;
	struct so_sock *st;
	struct tcp_sock *tp;
	int flags = 0;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	st = bpf_sk_storage_get(&so_socks, tp, 0, 0);
	if (!st)
		return 0;
	lift(tp, st, tp);
	if (alone &&
	    !bpf_getsockopt(tp, RW_SOL_TCP, RW_TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags))) {
		flags &= ~RW_CB_FLAGS;
		bpf_setsockopt(tp, RW_SOL_TCP, RW_TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	}
	flags = 0;
	if (alone)
		bpf_setsockopt(tp, RW_SOL_SOCKET, RW_SK_BPF_CB_FLAGS, &flags, sizeof(flags));
	give_slot(st, bpf_ktime_get_ns());
	bpf_sk_storage_delete(&so_socks, tp);
	return 0;
}
