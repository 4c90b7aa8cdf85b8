/* Shows that every kind of memory region is what its man page says, between two queue pairs of one
 * process:
 *
 *     regions
 *
 * Null regions, zero-based ones, the whole address space on demand, device memory, regions imported
 * into a second context, DMA-BUFs that are none; and the times of completions. Prints "regions: ok"
 * and exits with 0, or says what was wrong and exits with 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	SIZE = 20000,
	LOCAL = IBV_ACCESS_LOCAL_WRITE,
	ALL = LOCAL | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
};

#define CHECK(condition)                                                                       \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			fprintf(stderr, "regions: line %d: %s (errno %d)\n", __LINE__,         \
				#condition, errno);                                            \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory; /* SIZE bytes to send from, SIZE to receive into */

struct pair {
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp[2];
};

static struct ibv_sge sge(const void *at, uint32_t length, const struct ibv_mr *region)
{
	return (struct ibv_sge){ (uintptr_t)at, length, region->lkey };
}

static bool all(const uint8_t *at, size_t length, uint8_t value)
{
	for (size_t i = 0; i < length; i++)
		if (at[i] != value)
			return false;
	return true;
}

/* Makes two queue pairs with these protection domains, connected to each other. */
static struct pair connect_pair(struct ibv_pd *first, struct ibv_pd *second)
{
	struct pair pair;
	struct ibv_cq_init_attr_ex cq = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	union ibv_gid gid;
	CHECK(pair.cq = ibv_create_cq_ex(context, &cq));
	CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = ibv_cq_ex_to_cq(pair.cq),
			.recv_cq = ibv_cq_ex_to_cq(pair.cq),
			.cap = { 16, 16, 4, 4, 0 },
			.qp_type = IBV_QPT_RC,
		};
		CHECK(pair.qp[i] = ibv_create_qp(i ? second : first, &init));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		attr.qp_access_flags = ALL;
		CHECK(ibv_modify_qp(pair.qp[i], &attr,
				    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					    IBV_QP_ACCESS_FLAGS) == 0);
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_1024,
			.dest_qp_num = pair.qp[!i]->qp_num,
			.max_dest_rd_atomic = 4,
			.min_rnr_timer = 1,
			.ah_attr = { .is_global = 1, .port_num = 1,
				     .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } },
		};
		CHECK(ibv_modify_qp(pair.qp[i], &attr,
				    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					    IBV_QP_MIN_RNR_TIMER) == 0);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14,
					     .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
		CHECK(ibv_modify_qp(pair.qp[i], &attr,
				    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					    IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	}
	return pair;
}

static void destroy_pair(struct pair pair)
{
	CHECK(ibv_destroy_qp(pair.qp[0]) == 0 && ibv_destroy_qp(pair.qp[1]) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(pair.cq)) == 0);
}

/* The status of the next completion. */
static enum ibv_wc_status completion(struct pair pair)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(ibv_cq_ex_to_cq(pair.cq), 1, &wc)) == 0)
		;
	CHECK(count == 1);
	return wc.status;
}

static void post(struct pair pair, enum ibv_wr_opcode opcode, struct ibv_sge *list, int count,
		 uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .sg_list = list, .num_sge = count,
					.send_flags = IBV_SEND_SIGNALED };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(pair.qp[0], &wr, &bad) == 0);
}

static void one_sided(struct pair pair, enum ibv_wr_opcode opcode, struct ibv_sge list,
		      uint64_t remote, uint32_t rkey)
{
	post(pair, opcode, &list, 1, remote, rkey);
	CHECK(completion(pair) == IBV_WC_SUCCESS);
}

static void send(struct pair pair, struct ibv_sge *from, int from_count, struct ibv_sge *to,
		 int to_count)
{
	struct ibv_recv_wr *bad, wr = { .sg_list = to, .num_sge = to_count };
	CHECK(ibv_post_recv(pair.qp[1], &wr, &bad) == 0);
	post(pair, IBV_WR_SEND, from, from_count, 0, 0);
	CHECK(completion(pair) == IBV_WC_SUCCESS && completion(pair) == IBV_WC_SUCCESS);
}

/* A request that the peer refuses. Its queue pairs end, too. */
static void refused(enum ibv_wr_opcode opcode, struct ibv_sge list, uint64_t remote, uint32_t rkey)
{
	struct pair pair = connect_pair(pd, pd);
	post(pair, opcode, &list, 1, remote, rkey);
	CHECK(completion(pair) == IBV_WC_REM_ACCESS_ERR);
	destroy_pair(pair);
}

static void null_regions(struct pair pair)
{
	uint8_t *out = memory + SIZE;
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	CHECK(null && null->length == SIZE_MAX && null->rkey == 0);
	/* A message with zeros of a null region in its middle. */
	memset(memory, 7, SIZE);
	memset(out, 9, SIZE);
	struct ibv_sge holed[] = { sge(memory, 100, mr), sge((void *)12345, 5000, null),
				   sge(memory, 100, mr) };
	struct ibv_sge whole = sge(out, SIZE, mr);
	send(pair, holed, 3, &whole, 1);
	CHECK(all(out, 100, 7) && all(out + 100, 5000, 0) && all(out + 5100, 100, 7));
	CHECK(all(out + 5200, 100, 9));
	/* A receive whose first bytes go to a null region. */
	memset(out, 9, SIZE);
	struct ibv_sge tail[] = { sge(NULL, 3000, null), sge(out, 100, mr) };
	struct ibv_sge from = sge(memory, 3100, mr);
	send(pair, &from, 1, tail, 2);
	CHECK(all(out, 100, 7) && all(out + 100, 100, 9));
	/* A WRITE of zeros, and a READ and an atomic whose results are discarded. */
	one_sided(pair, IBV_WR_RDMA_WRITE, sge(NULL, SIZE, null), (uintptr_t)out, mr->rkey);
	CHECK(all(out, SIZE, 0));
	one_sided(pair, IBV_WR_RDMA_READ, sge(NULL, SIZE, null), (uintptr_t)memory, mr->rkey);
	one_sided(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, sge(NULL, 8, null), (uintptr_t)out, mr->rkey);
	CHECK(*(uint64_t *)out == 5);
	refused(IBV_WR_RDMA_READ, sge(out, 8, mr), 0, null->lkey);
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) != 0);
	CHECK(ibv_dereg_mr(null) == 0);
}

static void zero_based(struct pair pair)
{
	struct ibv_mr *zero = ibv_reg_mr(pd, memory, SIZE, ALL | IBV_ACCESS_ZERO_BASED);
	struct ibv_mr *moved = ibv_reg_mr_iova(pd, memory, SIZE, 0x7000, ALL);
	CHECK(zero && moved);
	memset(memory, 0, SIZE);
	memory[SIZE] = 1;
	one_sided(pair, IBV_WR_RDMA_WRITE, sge(memory + SIZE, 1, mr), 10, zero->rkey);
	one_sided(pair, IBV_WR_RDMA_WRITE, sge(memory + SIZE, 1, mr), 0x7000 + 20, moved->rkey);
	CHECK(memory[10] == 1 && memory[20] == 1);
	refused(IBV_WR_RDMA_WRITE, sge(memory + SIZE, 1, mr), (uintptr_t)memory, zero->rkey);
	CHECK(ibv_dereg_mr(zero) == 0 && ibv_dereg_mr(moved) == 0);
}

static void on_demand(struct pair pair)
{
	struct ibv_device_attr_ex attr;
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	struct ibv_mr *everything =
		ibv_reg_mr(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND);
	CHECK(everything);
	uint8_t *later = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(later != MAP_FAILED);
	struct ibv_sge advised = sge(later, SIZE, everything);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
			    &advised, 1) == 0);
	memset(memory, 3, SIZE);
	one_sided(pair, IBV_WR_RDMA_WRITE, sge(memory, SIZE, everything), (uintptr_t)later,
		  everything->rkey);
	CHECK(all(later, SIZE, 3));
	CHECK(munmap(later, SIZE) == 0);
	/* Access to memory that does not exist is refused, and causes no signal. */
	refused(IBV_WR_RDMA_WRITE, sge(memory, 8, everything), (uintptr_t)later, everything->rkey);
	CHECK(ibv_dereg_mr(everything) == 0);
}

static void device_memory(struct pair pair)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096, .log_align_req = 6 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	CHECK(dm);
	struct ibv_mr *region = ibv_reg_dm_mr(pd, dm, 64, 4000, ALL | IBV_ACCESS_ZERO_BASED);
	CHECK(region && !ibv_reg_dm_mr(pd, dm, 64, 4033, ALL | IBV_ACCESS_ZERO_BASED));
	CHECK(!ibv_reg_dm_mr(pd, dm, 0, 64, ALL) && errno == EINVAL);
	CHECK(ibv_free_dm(dm) == EBUSY);
	uint64_t value = 37;
	CHECK(ibv_memcpy_to_dm(dm, 64 + 8, &value, 8) == 0);
	one_sided(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, sge(memory, 8, mr), 8, region->rkey);
	CHECK(*(uint64_t *)memory == 37);
	CHECK(ibv_memcpy_from_dm(&value, dm, 64 + 8, 8) == 0 && value == 42);
	CHECK(ibv_memcpy_from_dm(&value, dm, 4092, 8) == EFAULT);
	CHECK(ibv_memcpy_from_dm(&value, dm, 2, 4) == EFAULT);
	CHECK(ibv_dereg_mr(region) == 0 && ibv_free_dm(dm) == 0);
	struct ibv_device_attr_ex caps;
	CHECK(ibv_query_device_ex(context, NULL, &caps) == 0);
	attr.length = caps.max_dm_size + 1;
	CHECK(!ibv_alloc_dm(context, &attr) && errno == ENOMEM);
	attr.length = caps.max_dm_size;
	CHECK((dm = ibv_alloc_dm(context, &attr)));
	attr.length = 4;
	CHECK(!ibv_alloc_dm(context, &attr) && errno == ENOMEM);
	CHECK(ibv_free_dm(dm) == 0);
}

static void imported(const char *self)
{
	struct ibv_context *second = ibv_import_device(dup(context->cmd_fd));
	CHECK(second);
	struct ibv_pd *same_pd = ibv_import_pd(second, pd->handle);
	CHECK(same_pd);
	struct ibv_mr *same_mr = ibv_import_mr(same_pd, mr->handle);
	CHECK(same_mr && same_mr->lkey == mr->lkey && same_mr->rkey == mr->rkey);
	CHECK(!ibv_import_pd(second, 0xffffff) && errno == EINVAL);
	CHECK(!ibv_import_mr(same_pd, 0xffffff) && errno == EINVAL);
	/* Queue pairs of both protection domains can use the region by both handles. */
	struct pair pair = connect_pair(same_pd, pd);
	memset(memory, 4, SIZE);
	one_sided(pair, IBV_WR_RDMA_WRITE, sge(memory, SIZE, same_mr), (uintptr_t)memory + SIZE,
		  mr->rkey);
	CHECK(all(memory + SIZE, SIZE, 4));
	destroy_pair(pair);
	ibv_unimport_mr(same_mr);
	ibv_unimport_pd(same_pd);
	CHECK(ibv_close_device(second) == 0);
	/* Another process has the descriptor, but no access to the memory. */
	char number[16];
	snprintf(number, sizeof number, "%d", dup(context->cmd_fd));
	int status;
	if (fork() == 0) {
		execl("/proc/self/exe", self, number, NULL);
		_exit(127);
	}
	CHECK(wait(&status) > 0 && status == 0);
}

static void no_dma_bufs(void)
{
	int file = memfd_create("no dma-buf", 0);
	CHECK(ftruncate(file, 4096) == 0);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, LOCAL) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, file, LOCAL) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 1, file, LOCAL) && errno == EINVAL);
	close(file);
}

/* Completions carry the clock that can be queried, and the time of day. */
static void times(struct pair pair)
{
	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before;
	struct ibv_poll_cq_attr none = {};
	struct timespec start, end;
	struct ibv_sge list = sge(memory, 8, mr);
	CHECK(ibv_query_rt_values_ex(context, &before) == 0);
	clock_gettime(CLOCK_REALTIME, &start);
	post(pair, IBV_WR_RDMA_WRITE, &list, 1, (uintptr_t)memory + SIZE, mr->rkey);
	while (ibv_start_poll(pair.cq, &none) == ENOENT)
		;
	uint64_t raw = ibv_wc_read_completion_ts(pair.cq);
	uint64_t wall = ibv_wc_read_completion_wallclock_ns(pair.cq);
	ibv_end_poll(pair.cq);
	clock_gettime(CLOCK_REALTIME, &end);
	CHECK(ibv_query_rt_values_ex(context, &after) == 0);
	CHECK((uint64_t)before.raw_clock.tv_nsec <= raw && raw <= (uint64_t)after.raw_clock.tv_nsec);
	/* Our time may differ slightly, because it follows a clock that is faster to read. */
	const uint64_t slack = 5000000;
	CHECK(start.tv_sec * 1000000000ull + start.tv_nsec <= wall + slack);
	CHECK(wall <= end.tv_sec * 1000000000ull + end.tv_nsec + slack);
}

int main(int count, char **arguments)
{
	if (count == 2) { /* the child of `imported` */
		CHECK(!ibv_import_device(atoi(arguments[1])) && errno == EOPNOTSUPP);
		return 0;
	}
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	CHECK(posix_memalign((void **)&memory, 4096, 2 * SIZE) == 0);
	CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, 2 * SIZE, ALL)));
	struct pair pair = connect_pair(pd, pd);
	null_regions(pair);
	zero_based(pair);
	on_demand(pair);
	device_memory(pair);
	times(pair);
	no_dma_bufs();
	imported(arguments[0]);
	destroy_pair(pair);
	/* The context is closed before its remaining objects. */
	CHECK(ibv_close_device(context) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	ibv_free_device_list(list);
	puts("regions: ok");
	return 0;
}
