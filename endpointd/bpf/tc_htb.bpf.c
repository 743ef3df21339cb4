// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Back end `tc_htb`: a clsact egress classifier that notices flowlets in the packets of a device
 * and sends those of a paced connection to its HTB class.
 *
 * A flowlet starts when enough payload has left without a pause, and user space ends it when
 * `last_ns` is old: later if the packet shows that its sender has more to send (`continues`). While a
 * slot's lease is valid, its packets carry the class in skb->priority; afterwards they take the default
 * class, which nothing limits, whether or not the daemon lives (flowtune §6, fault-tolerance). So do those of
 * a flow whose demand was lowered to its use: it is watched, and told once it has used up its rate.
 *
 * The program may be skipped for any packet, which then takes the default class; what it returns is the
 * same always.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "flow.h"
#include "slots.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* linux/pkt_cls.h: let the next filter decide as if this one were not there. */
#define RW_TC_ACT_UNSPEC (-1)
#define RW_IPPROTO_TCP 6
#define RW_ETH_P_8021Q 0x8100
#define RW_ETH_P_8021AD 0x88A8
#define RW_IP_FRAGMENT 0x3fff

/* Constants that user space sets before loading. */
const volatile __u64 rw_min_flowlet_bytes = 1;
/* A pause of this length before the minimum is reached begins a new flowlet, */
const volatile __u64 rw_gap_ns = 5000000;
/* and of this length if the sender had more to send. */
const volatile __u64 rw_stuck_ns = 200000000;
/* Class of slot s: minor number rw_first_minor + s under the qdisc's handle. */
const volatile __u32 rw_qdisc_handle = 0;
const volatile __u32 rw_first_minor = 0;
/* Time that a class may catch up on after it was held up. */
const volatile __u64 rw_burst_ns = 4000000;
/* How long a flow that met its rate waits for the allocator's answer; a rate takes 0.3 ms there and back. */
#define RW_ANSWER_NS 4000000
/* Ten full segments (RFC 6928), and how many of its own bursts a watched flow may be ahead of its rate. */
#define RW_INITIAL_WINDOW_BYTES 15140
#define RW_TOLERATED_BURSTS 4
/* A change of the application's own maximum is told once in this time. */
#define RW_FLAP_NS 1000000
/*
 * Where struct tcp_sock, which begins with struct sock, has its members; 0: not known, for a kernel that does
 * not describe its types.
 */
const volatile __u32 rw_write_seq_offset = 0;
const volatile __u32 rw_srtt_us_offset = 0;
const volatile __u32 rw_max_pacing_rate_offset = 0;

struct th_key {
	/* IPv4 as ::ffff:a.b.c.d. */
	__u8 src_addr[16];
	__u8 dst_addr[16];
	/* Network byte order. */
	__be16 src_port;
	__be16 dst_port;
};

/* State of a slot for the program and the reclaim only. */
struct th_flow {
	struct th_key key;
	/* `rw_slot_rate.clears` when the flowlet was reported. */
	__u32 clears;
	__u64 first_ns;
	__u64 bytes;
	/* What the class would hold if it had no burst, and when that was worked out. */
	__u64 level_bytes;
	__u64 level_ns;
	/* The first payload byte that was not seen yet: what ends there or before is sent again. */
	__u32 new_seq;
	__u8 first_paced_due;
	/* The last packet went to the slot's class. */
	__u8 paced;
	__u8 unused[2];
	/* Since when every packet had more behind it; 0: the last one had not. */
	__u64 busy_ns;
	/* Until when the answer to a LIMITED may come, and the rate before it. */
	__u64 answer_ns;
	__u64 unanswered_wire;
	/* The application's own maximum that user space was last told, and when. */
	__u64 told_max;
	__u64 told_ns;
	/* Largest packet of late. */
	__u64 largest_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct th_key);
	__type(value, __u32);
} th_slots SEC(".maps");

/* Connections that found no slot, so that each is counted once. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct th_key);
	__type(value, __u8);
} th_refused SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct th_flow);
} th_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot_rate);
} th_rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot_state);
} th_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rw_slot_counters);
} th_counts SEC(".maps");

/* First in, first out: a slot rests as long as possible before it is used again. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, __u32);
} th_free SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16); /* Sized when loaded, like the maps by slot. */
} th_events SEC(".maps");

struct ipv6_header {
	__be32 version_class_label;
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	__u32 src_addr[4];
	__u32 dst_addr[4];
};

/* The parts of a packet that this program reads. */
struct packet {
	struct th_key key;
	__u32 payload_bytes;
	/* Frames that the device makes of it, and the largest of them, headers included. */
	__u32 frames;
	__u32 frame_bytes;
	/* The first payload byte after it. */
	__u32 end_seq;
	__u8 dscp;
	__u8 syn;
	__u8 closes;
	__u8 push;
};

#define COUNT(member)                                                                   \
	do {                                                                            \
		__u32 zero = 0;                                                         \
		struct rw_slot_counters *counts = bpf_map_lookup_elem(&th_counts, &zero); \
		if (counts)                                                             \
			__sync_fetch_and_add(&counts->member, 1);                       \
	} while (0)

/* Whether the packet is TCP and not a fragment. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *packet)
{
	__u32 offset = ETH_HLEN;
	__be16 protocol = (__be16)skb->protocol;
	__u32 *src = (__u32 *)packet->key.src_addr;
	__u32 *dst = (__u32 *)packet->key.dst_addr;
	struct tcphdr tcp;
	__u32 header;
	int tags;

	for (tags = 0; tags < 2; tags++) {
		if (protocol != bpf_htons(RW_ETH_P_8021Q) && protocol != bpf_htons(RW_ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, offset + 2, &protocol, sizeof(protocol)))
			return 0;
		offset += 4;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
			return 0;
		if (ip.protocol != RW_IPPROTO_TCP || ip.frag_off & bpf_htons(RW_IP_FRAGMENT))
			return 0;
		src[0] = 0;
		src[1] = 0;
		src[2] = bpf_htonl(0xffff);
		src[3] = ip.saddr;
		dst[0] = 0;
		dst[1] = 0;
		dst[2] = bpf_htonl(0xffff);
		dst[3] = ip.daddr;
		packet->dscp = ip.tos >> 2;
		offset += ip.ihl * 4;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6_header ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
			return 0;
		if (ip.next_header != RW_IPPROTO_TCP)
			return 0;
		__builtin_memcpy(src, ip.src_addr, sizeof(ip.src_addr));
		__builtin_memcpy(dst, ip.dst_addr, sizeof(ip.dst_addr));
		packet->dscp = (bpf_ntohl(ip.version_class_label) >> 22) & 0x3f;
		offset += sizeof(ip);
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, offset, &tcp, sizeof(tcp)))
		return 0;
	packet->key.src_port = tcp.source;
	packet->key.dst_port = tcp.dest;
	packet->syn = tcp.syn;
	packet->closes = tcp.fin || tcp.rst;
	header = offset + tcp.doff * 4;
	packet->payload_bytes = skb->len > header ? skb->len - header : 0;
	packet->frames = 1;
	packet->frame_bytes = skb->len;
	/* The number of segments is not told of what a virtual machine sent. */
	if (skb->gso_size && packet->payload_bytes > skb->gso_size) {
		packet->frames = (packet->payload_bytes + skb->gso_size - 1) / skb->gso_size;
		packet->frame_bytes = header + skb->gso_size;
	}
	packet->end_seq = bpf_ntohl(tcp.seq) + packet->payload_bytes;
	packet->push = tcp.psh;
	return 1;
}

/* Queues an event; returns whether it found room. `packet` only for START. */
static __always_inline int emit(struct __sk_buff *skb, struct packet *packet, __u32 slot,
				__u32 use_count, __u8 kind, __u64 now, __u64 value)
{
	struct rw_event *event = bpf_ringbuf_reserve(&th_events, sizeof(*event), 0);

	if (!event) {
		COUNT(events_lost);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->at_ns = now;
	event->slot = slot;
	event->use_count = use_count;
	event->kind = kind;
	event->value = value;
	if (packet) {
		__builtin_memcpy(event->src_addr, packet->key.src_addr, sizeof(event->src_addr));
		__builtin_memcpy(event->dst_addr, packet->key.dst_addr, sizeof(event->dst_addr));
		event->src_port = bpf_ntohs(packet->key.src_port);
		event->dst_port = bpf_ntohs(packet->key.dst_port);
		event->mark = skb->mark;
		event->dscp = packet->dscp;
		/* Of the sending socket, where it is in this namespace; else 0. */
		event->cgroup_id = bpf_skb_cgroup_id(skb);
	}
	bpf_ringbuf_submit(event, 0);
	return 1;
}

/* The slot of a connection that has none yet. */
static __always_inline __u32 take_slot(struct packet *packet)
{
	struct th_flow fresh = {
		.key = packet->key,
		.new_seq = packet->end_seq - packet->payload_bytes,
	};
	struct rw_slot_state *state;
	__u32 slot;

	if (bpf_map_pop_elem(&th_free, &slot)) {
		__u8 seen = 1;

		if (!bpf_map_update_elem(&th_refused, &packet->key, &seen, BPF_NOEXIST))
			COUNT(table_full);
		return RW_NO_SLOT;
	}
	state = bpf_map_lookup_elem(&th_states, &slot);
	if (!state)
		return RW_NO_SLOT;
	/* Another CPU may have been faster with the same connection. */
	if (bpf_map_update_elem(&th_slots, &packet->key, &slot, BPF_NOEXIST)) {
		__u32 *present;

		bpf_map_push_elem(&th_free, &slot, 0);
		present = bpf_map_lookup_elem(&th_slots, &packet->key);
		return present ? *present : RW_NO_SLOT;
	}
	bpf_map_update_elem(&th_flows, &slot, &fresh, BPF_ANY);
	state->uses += 1;
	state->phase = RW_PHASE_QUIET;
	state->limited_ns = 0;
	state->continues = 0;
	state->round_trip_us = 0;
	state->frame_bytes = 0;
	COUNT(connections);
	return slot;
}

/*
 * Whether the sender has more to send than this packet: asked of its socket where that is here; else a
 * packet without PSH is not the last of what was written.
 */
static __always_inline int continues(struct __sk_buff *skb, struct packet *packet)
{
	struct bpf_sock *sk = skb->sk;

	if (rw_write_seq_offset && sk) {
		void *tp = bpf_skc_to_tcp_sock(sk);

		if (tp)
			return (__s32)(*(__u32 *)(tp + rw_write_seq_offset) - packet->end_seq) > 0;
	}
	return !packet->push;
}

/* The application's own maximum, in bytes of payload per second; all bits: none, or the socket is not here. */
static __always_inline __u64 own_max(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (rw_max_pacing_rate_offset && sk) {
		void *tp = bpf_skc_to_tcp_sock(sk);

		if (tp)
			return *(__u64 *)(tp + rw_max_pacing_rate_offset);
	}
	return ~0ULL;
}

/* Notes the round-trip time of the packet's socket, where that is here. */
static __always_inline void note_round_trip(struct __sk_buff *skb, struct rw_slot_state *state)
{
	struct bpf_sock *sk = skb->sk;

	if (rw_srtt_us_offset && sk) {
		void *tp = bpf_skc_to_tcp_sock(sk);

		/* The kernel keeps eighths. */
		if (tp)
			state->round_trip_us = *(__u32 *)(tp + rw_srtt_us_offset) >> 3;
	}
}

/* Follows the flowlet of a slot through one packet. */
static __always_inline void detect(struct __sk_buff *skb, struct packet *packet, __u32 slot,
				   struct th_flow *flow, struct rw_slot_state *state,
				   struct rw_slot_rate *rate, __u64 now)
{
	__u32 use_count = state->uses - 1;
	__u64 quiet_ns = now - state->last_ns;
	__u64 gap_ns = state->continues ? rw_stuck_ns : rw_gap_ns;
	__u32 phase = state->phase;
	int again;

	if (packet->closes) {
		/* What follows are retransmissions at most: the flowlet is over now, not only when its slot
		 * is taken back. */
		if (phase == RW_PHASE_ACTIVE)
			emit(skb, 0, slot, use_count, RW_EVENT_IDLE, now, 0);
		state->phase = RW_PHASE_CLOSING;
		state->last_ns = now;
		return;
	}
	if (!packet->payload_bytes)
		return;
	again = (__s32)(packet->end_seq - flow->new_seq) <= 0;
	if (!again)
		flow->new_seq = packet->end_seq;
	state->last_ns = now;
	state->continues = continues(skb, packet);
	if (phase == RW_PHASE_ACTIVE && now - flow->told_ns >= RW_FLAP_NS) {
		__u64 max = own_max(skb);

		if (max != flow->told_max) {
			flow->told_ns = now;
			if (emit(skb, 0, slot, use_count, RW_EVENT_OWN_MAX, now, max))
				flow->told_max = max;
		}
	}
	/* The tail that is sent again, or a peer that is gone, is no progress. */
	if (phase == RW_PHASE_ACTIVE || phase == RW_PHASE_CLOSING || again)
		return;
	if (phase == RW_PHASE_RESTING) {
		if (rate->clears == flow->clears) {
			if (emit(skb, 0, slot, use_count, RW_EVENT_RESUME, now, 0))
				state->phase = RW_PHASE_ACTIVE;
			return;
		}
		state->phase = RW_PHASE_QUIET;
		flow->bytes = 0;
	}
	if (!flow->bytes || quiet_ns > gap_ns) {
		flow->bytes = 0;
		flow->first_ns = now;
	}
	flow->bytes += packet->payload_bytes;
	if (flow->bytes < rw_min_flowlet_bytes)
		return;
	flow->told_max = own_max(skb);
	flow->told_ns = now;
	if (!emit(skb, packet, slot, use_count, RW_EVENT_START, now, flow->told_max))
		return;
	flow->clears = rate->clears;
	flow->first_paced_due = 1;
	state->phase = RW_PHASE_ACTIVE;
}

/*
 * Takes a packet into account that goes to its class, and returns whether one before it still waits
 * there. That is told from a queue that drains at the class's rate, which holds all that HTB lets
 * through at once as well: its tokens begin with `rw_burst_ns`, and the packet that uses them up still
 * leaves. So packets wait from a level above the burst. One large packet, or one burst of small ones,
 * that comes to an empty class is therefore no limit; TCP's small queues keep two packets of each
 * sender that has more to send below its socket. A watched flow uses no class: it has used up its rate when it
 * is ahead of it by more than its own bursts.
 */
static __always_inline int waits(struct th_flow *flow, __u64 rate, __u64 wire_bytes, __u64 now,
				 int watched)
{
	__u64 level = flow->level_bytes;
	__u64 passed_us, drained, burst;
	int waits;

	if (!flow->level_ns)
		flow->level_ns = now;
	/* Whole microseconds, the rest counts next time: at most 10 s and 50 GB/s, far below 2^64. */
	passed_us = now > flow->level_ns ? (now - flow->level_ns) / 1000 : 0;
	flow->level_ns += passed_us * 1000;
	if (passed_us > 10000000)
		passed_us = 10000000;
	if (rate > 50000000000ULL)
		rate = 50000000000ULL;
	drained = rate * passed_us / 1000000;
	level = level > drained ? level - drained : 0;
	burst = rate * (rw_burst_ns / 1000) / 1000000;
	if (watched) {
		if (burst < RW_INITIAL_WINDOW_BYTES)
			burst = RW_INITIAL_WINDOW_BYTES;
		if (burst < RW_TOLERATED_BURSTS * flow->largest_bytes)
			burst = RW_TOLERATED_BURSTS * flow->largest_bytes;
	}
	waits = level > burst;
	flow->level_bytes = level + wire_bytes;
	if (wire_bytes > flow->largest_bytes)
		flow->largest_bytes = wire_bytes;
	else
		flow->largest_bytes -= flow->largest_bytes >> 3;
	return waits;
}

/* Reports once that the flow is limited, if user space has asked for that. */
static __always_inline void report_limited(struct __sk_buff *skb, struct th_flow *flow,
					   struct rw_slot_state *state, struct rw_slot_rate *rate,
					   __u32 slot, __u64 now)
{
	__u32 use_count = state->uses - 1;
	__u64 watch = *(volatile __u64 *)&rate->watch, wire = *(volatile __u64 *)&rate->wire_bytes_per_s;

	state->limited_ns = now;
	/* One question at a time. */
	if (watch != RW_WATCHES(use_count) || state->phase != RW_PHASE_ACTIVE ||
	    (now < flow->answer_ns && wire == flow->unanswered_wire) ||
	    __sync_val_compare_and_swap(&rate->watch, watch, 0) != watch)
		return;
	flow->answer_ns = now + RW_ANSWER_NS;
	flow->unanswered_wire = wire;
	if (!emit(skb, 0, slot, use_count, RW_EVENT_LIMITED, now, 0))
		rate->watch = watch;
}

/*
 * While rates are only observed: whether the sender has had more to send than TCP let out for as long as
 * a flowlet's pause. A sender whose socket is not here counts as such, for a packet does not tell.
 */
static __always_inline int backlogged(struct __sk_buff *skb, struct packet *packet,
				      struct th_flow *flow, struct rw_slot_state *state, __u64 now)
{
	if (!packet->payload_bytes)
		return 0;
	if (!rw_write_seq_offset || !skb->sk)
		return 1;
	if (!state->continues) {
		flow->busy_ns = 0;
		return 0;
	}
	if (!flow->busy_ns)
		flow->busy_ns = now;
	return now - flow->busy_ns >= rw_gap_ns;
}

SEC("tc")
int rw_tc_htb(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct rw_slot_state *state;
	struct rw_slot_rate *rate;
	struct th_flow *flow;
	struct rw_slot_counters *counts;
	__u32 slot, use_count, wire_bytes, zero = 0;
	__u64 now, expires, wire;
	__u32 *found;
	int watched;

	if (!parse(skb, &packet))
		return RW_TC_ACT_UNSPEC;
	found = bpf_map_lookup_elem(&th_slots, &packet.key);
	if (found) {
		slot = *found;
	} else {
		if (!packet.payload_bytes || packet.closes)
			return RW_TC_ACT_UNSPEC;
		slot = take_slot(&packet);
	}
	state = bpf_map_lookup_elem(&th_states, &slot);
	rate = bpf_map_lookup_elem(&th_rates, &slot);
	flow = bpf_map_lookup_elem(&th_flows, &slot);
	if (!state || !rate || !flow)
		return RW_TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	if (packet.syn)
		flow->new_seq = packet.end_seq - packet.payload_bytes;
	if (packet.syn && state->phase != RW_PHASE_QUIET) {
		/* The same ports again: another connection. */
		emit(skb, 0, slot, state->uses - 1, RW_EVENT_CLOSE, now, 0);
		state->uses += 1;
		state->phase = RW_PHASE_QUIET;
		state->frame_bytes = 0;
		flow->bytes = 0;
		flow->first_paced_due = 0;
	}
	detect(skb, &packet, slot, flow, state, rate, now);
	wire_bytes = skb->wire_len + packet.frames * rate->tunnel_bytes;
	__sync_fetch_and_add(&state->sent_bytes, wire_bytes);
	if (packet.frame_bytes > state->frame_bytes)
		state->frame_bytes = packet.frame_bytes;
	note_round_trip(skb, state);
	use_count = state->uses - 1;
	expires = *(volatile __u64 *)&rate->expires_ns;
	if (!expires || rate->use_count != use_count) {
		flow->paced = 0;
		counts = bpf_map_lookup_elem(&th_counts, &zero);
		if (counts && *(volatile __u64 *)&counts->observing &&
		    backlogged(skb, &packet, flow, state, now))
			report_limited(skb, flow, state, rate, slot, now);
		return RW_TC_ACT_UNSPEC;
	}
	if (now >= expires) {
		if (flow->paced) {
			flow->paced = 0;
			COUNT(expired);
		}
		return RW_TC_ACT_UNSPEC;
	}
	wire = *(volatile __u64 *)&rate->wire_bytes_per_s;
	watched = *(volatile __u64 *)&rate->watch == RW_WATCHES(use_count) ||
		  (now < flow->answer_ns && wire == flow->unanswered_wire);
	if (!watched)
		skb->priority = rw_qdisc_handle | (rw_first_minor + slot);
	/* A rate that is new has not limited anything yet, and its class has all of its tokens. */
	if (!flow->paced) {
		state->limited_ns = 0;
		flow->level_bytes = 0;
		flow->level_ns = now;
	}
	if (waits(flow, wire, wire_bytes, now, watched))
		report_limited(skb, flow, state, rate, slot, now);
	flow->paced = 1;
	if (flow->first_paced_due && packet.payload_bytes) {
		flow->first_paced_due = 0;
		emit(skb, 0, slot, use_count, RW_EVENT_FIRST_PACED, now, now - flow->first_ns);
	}
	return RW_TC_ACT_UNSPEC;
}
