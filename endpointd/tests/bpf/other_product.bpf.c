/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Another product's sock_ops program: it counts round-trip times of connections to one port. */
#include <linux/types.h>
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 port = 0;
/* Otherwise it only counts callbacks that somebody else has asked for. */
const volatile __u32 asks = 0;

__u64 count;

SEC("sockops")
int other_product(struct bpf_sock_ops *ctx)
{
	if (bpf_ntohl(ctx->remote_port) != port)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (asks)
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags |
						       BPF_SOCK_OPS_RTT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		__sync_fetch_and_add(&count, 1);
		break;
	}
	return 1;
}
