/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Names of congestion controls. Include after kernel.h. */
#ifndef RATEWRIGHT_NAMES_H
#define RATEWRIGHT_NAMES_H

static __always_inline bool same_name(const char *a, const volatile char *b)
{
	for (int i = 0; i < RW_TCP_CA_NAME_MAX; i++) {
		if (a[i] != b[i])
			return false;
		if (!a[i])
			return true;
	}
	return true;
}

static __always_inline void copy_name(char *to, const volatile char *from)
{
	for (int i = 0; i < RW_TCP_CA_NAME_MAX; i++)
		to[i] = from[i];
}

#endif /* RATEWRIGHT_NAMES_H */
