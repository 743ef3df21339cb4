/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Records that the programs share with user space; `src/backend/ring.rs` and the back ends hold
 * the same layouts in Rust.
 */
#ifndef RATEWRIGHT_FLOW_H
#define RATEWRIGHT_FLOW_H

#include <linux/types.h>

/* Kind of an event of a connection. */
enum rw_event_kind {
	/* A backlog of at least the minimum flowlet size: all members are valid. */
	RW_EVENT_START = 1,
	/* Nothing is queued and everything was acknowledged. */
	RW_EVENT_IDLE = 2,
	/* The backlog is back before user space took the flowlet's rate away. */
	RW_EVENT_RESUME = 3,
	/* The connection gave its slot back. */
	RW_EVENT_CLOSE = 4,
	/* First transmission under a valid rate; `value` holds ns since the flowlet's first write. */
	RW_EVENT_FIRST_PACED = 5,
	/* The flowlet is watched, and has used up its rate with more to send; once per watch. */
	RW_EVENT_LIMITED = 6,
	/* The application changed its SO_MAX_PACING_RATE; `value` is the new one as in START. */
	RW_EVENT_OWN_MAX = 7,
};

/* One record of the ring buffer, 80 bytes. */
struct rw_event {
	/* CLOCK_MONOTONIC. */
	__u64 at_ns;
	/* START, OWN_MAX: the application's SO_MAX_PACING_RATE in bytes/s (~0: none). FIRST_PACED: ns. */
	__u64 value;
	/* cgroup v2 id of the socket, 0 if unknown. */
	__u64 cgroup_id;
	__u32 slot;
	/* Use count of the slot. */
	__u32 use_count;
	/* IPv6 addresses; IPv4 as ::ffff:a.b.c.d. The source is the local end. */
	__u8 src_addr[16];
	__u8 dst_addr[16];
	/* Host byte order. */
	__u16 src_port;
	__u16 dst_port;
	__u32 mark;
	/* enum rw_event_kind. */
	__u8 kind;
	__u8 dscp;
	__u8 unused[6];
};

#endif /* RATEWRIGHT_FLOW_H */
