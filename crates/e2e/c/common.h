/* Functions of the programs that exhaust devices and peers. */
#ifndef COMMON_H
#define COMMON_H

/* For program_invocation_short_name. */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static struct ibv_context *context;
static struct ibv_device_attr limits;
static union ibv_gid gid;

static inline void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

static inline void report(const char *name, long value)
{
	printf("%s: %s=%ld\n", program_invocation_short_name, name, value);
	fflush(stdout);
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The resident memory in KiB, after free memory was returned to the system. */
static inline long resident(void)
{
	long pages = 0;
	malloc_trim(0);
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%*d %ld", &pages) != 1)
		fail("no /proc/self/statm");
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static inline long descriptors(void)
{
	long count = 0;
	for (int fd = 0; fd < 65536; fd++)
		count += fcntl(fd, F_GETFD) != -1;
	return count;
}

static inline void open_device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list || !count)
		fail("no device");
	context = ibv_open_device(list[0]);
	if (!context || ibv_query_device(context, &limits) || ibv_query_gid(context, 1, 1, &gid))
		fail("cannot open %s", ibv_get_device_name(list[0]));
	ibv_free_device_list(list);
}

static inline void *some(size_t count, size_t size)
{
	void *memory = calloc(count, size);
	if (!memory)
		fail("no memory");
	return memory;
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type, int depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = (uint32_t)depth, .max_recv_wr = (uint32_t)depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	errno = 0;
	return ibv_create_qp(pd, &init);
}

static inline void initialise(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("cannot move a queue pair to INIT");
}

static inline void connect_to(struct ibv_qp *qp, uint32_t number, const union ibv_gid *to, int rnr_retry)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = number,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *to, .sgid_index = 1, .hop_limit = 64 } },
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("cannot move a queue pair to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = (uint8_t)rnr_retry, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("cannot move a queue pair to RTS");
}

#endif
