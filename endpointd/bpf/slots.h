/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Slot table of the back ends `sock_ops` and `tc_htb`. User space and program write to
 * separate structures, so that neither overwrites the other. `src/backend/slots.rs` holds the same
 * layouts.
 */
#ifndef RATEWRIGHT_SLOTS_H
#define RATEWRIGHT_SLOTS_H

#include <linux/types.h>

#define RW_NO_SLOT (~0U)
/*
 * Smallest rate that is put in force (tc_htb: by user space). A burst of 64 KiB holds the next one up
 * for 4 s at this rate, and the end of the rate does not shorten that.
 */
#define RW_MIN_BYTES_PER_S 16384

/* Phase of a slot's flowlet. */
enum rw_phase {
	/* No reported flowlet. */
	RW_PHASE_QUIET = 0,
	/* START or RESUME was reported. */
	RW_PHASE_ACTIVE = 1,
	/* IDLE was reported, and user space has not ended the flowlet. */
	RW_PHASE_RESTING = 2,
	/* tc_htb: a FIN or RST was sent; the connection may still retransmit. */
	RW_PHASE_CLOSING = 3,
	/* The slot has no user. */
	RW_PHASE_FREE = 4,
};

/* Written by user space: the expiry last when a rate appears, first when it goes. */
struct rw_slot_rate {
	/* On the wire, Ethernet header and tunnels included. */
	__u64 wire_bytes_per_s;
	/* 0: no rate. */
	__u64 expires_ns;
	/* Use count of the connection that the rate is for. */
	__u32 use_count;
	/* Number of flowlets of this slot that user space has ended. */
	__u32 clears;
	/* RW_WATCHES(use_count) if LIMITED is asked for; the program that reports it makes it 0. */
	__u64 watch;
	/* What tunnels add to each frame of the connection; written when its START is read. */
	__u32 tunnel_bytes;
	__u32 unused;
};

#define RW_WATCHES(use_count) ((1ULL << 32) | (use_count))

/* Written by the program; tc_htb's user space also turns ACTIVE into RESTING. */
struct rw_slot_state {
	/* When the program last saw the connection do something. */
	__u64 last_ns;
	/* Connections that had the slot so far, the present one included. */
	__u32 uses;
	/* enum rw_phase. */
	__u32 phase;
	/* On the wire, as rates, and acknowledged payload; only differences count. */
	__u64 sent_bytes;
	__u64 acked_bytes;
	/* When the rate, and nothing else, last kept the connection from sending. */
	__u64 limited_ns;
	/* sock_ops: the socket's maximum is the rate's. */
	__u32 capped;
	/* tc_htb: the sender has more to send, or waits for acknowledgements. */
	__u32 continues;
	/* Smoothed round-trip time, if it is known. */
	__u32 round_trip_us;
	/* tc_htb: the connection's largest frame at the device. */
	__u32 frame_bytes;
};

struct rw_slot_counters {
	/* Slots in use now. */
	__u64 connections;
	__u64 table_full;
	__u64 events_lost;
	__u64 adopted;
	__u64 expired;
	/* sock_ops: a socket took the transmit timestamp flag. */
	__u64 timestamps;
	/* Written by user space: no rate is in force, and flows' use counts without one. */
	__u64 observing;
	/* sock_ops, written by user space: no other product's program may want a socket's callbacks. */
	__u64 alone;
};

#endif /* RATEWRIGHT_SLOTS_H */
