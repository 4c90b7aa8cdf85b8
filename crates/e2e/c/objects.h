/* Functions of the programs that test single verbs objects: one process sends to itself. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int checks;

static inline void fail(const char *file, int line, const char *what, long got, long wanted)
{
	fprintf(stderr, "%s:%d: %s is %ld, not %ld (errno %d: %s)\n", file, line, what, got, wanted,
		errno, strerror(errno));
	exit(1);
}

/* Compares two numbers; the first is printed if they differ. */
#define EQ(got, wanted)                                                              \
	do {                                                                         \
		long g = (long)(got), w = (long)(wanted);                            \
		checks++;                                                            \
		if (g != w)                                                          \
			fail(__FILE__, __LINE__, #got, g, w);                        \
	} while (0)

/* A constructor must succeed. */
#define MADE(pointer) EQ((pointer) != NULL, 1)

/* A constructor must fail with this errno. */
#define REFUSED(pointer, number)           \
	do {                               \
		errno = 0;                 \
		EQ((pointer) != NULL, 0);  \
		EQ(errno, number);         \
	} while (0)

static inline struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	MADE(list);
	MADE(list[0]);
	MADE(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	return context;
}

enum { GID_INDEX = 1, EVERYTHING = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* Brings a queue pair to RTS, towards another of the same device. */
static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	/* FLUSH is included, whose rights rdma-core 44 does not define. */
	attr.qp_access_flags = (EVERYTHING & ~IBV_ACCESS_LOCAL_WRITE) | 3 << 8;
	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					    IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = GID_INDEX;
	attr.ah_attr.grh.hop_limit = 64;
	EQ(ibv_query_gid(qp->context, 1, GID_INDEX, &attr.ah_attr.grh.dgid), 0);
	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					    IBV_QP_MIN_RNR_TIMER), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
					    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					    IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static inline void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

/* Waits for the next completion. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	EQ(n, 1);
	return wc;
}
