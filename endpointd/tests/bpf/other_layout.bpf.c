/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A congestion control by the name of a daemon's, of a version whose state has another layout: what
 * later versions took for "this state was initialised", a maximum of the daemon's and one of the
 * application's, stands for something else here.
 */
#include "kernel.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The application's own maximum, in bytes/s. */
const volatile __u32 present_max = 0;

SEC("struct_ops/init")
void BPF_PROG(ol_init, struct sock *sk)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;

	icsk->icsk_ca_priv[9] = 0x40ULL << 48;
	icsk->icsk_ca_priv[10] = 12345ULL << 32 | present_max;
}

SEC("struct_ops/ssthresh")
__u32 BPF_PROG(ol_ssthresh, struct sock *sk)
{
	return 10;
}

SEC("struct_ops/undo_cwnd")
__u32 BPF_PROG(ol_undo_cwnd, struct sock *sk)
{
	return 10;
}

SEC("struct_ops/cong_avoid")
void BPF_PROG(ol_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ol_cc = {
	.init = (void *)ol_init,
	.ssthresh = (void *)ol_ssthresh,
	.undo_cwnd = (void *)ol_undo_cwnd,
	.cong_avoid = (void *)ol_cong_avoid,
	.flags = RW_TCP_CONG_NON_RESTRICTED,
	.name = "rw_other",
};
