/* ATOMIC WRITE and FLUSH (IBTA annex A19), with the extended interface and, where possible, the old one. */
#include "objects.h"
#include <stddef.h>

/* Constants that rdma-core 44 does not define. */
enum {
	ACCESS_FLUSH_GLOBAL = 1 << 8, ACCESS_FLUSH_PERSISTENT = 1 << 9,
	WITH_FLUSH = 1 << 11, WITH_ATOMIC_WRITE = 1 << 12,
	GLOBAL = 1, PERSISTENT = 2, RANGE = 0, REGION = 1, WC_FLUSH = 8, LENGTH = 8192,
};
static const uint64_t CAP_FLUSH_GLOBAL = 1ULL << 38, CAP_FLUSH_PERSISTENT = 1ULL << 39,
		      CAP_ATOMIC_WRITE = 1ULL << 40;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *here, *there;
static struct ibv_mr *mr, *closed, *source;
static uint8_t *memory;

static struct ibv_qp *queue_pair(enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1, .pd = pd,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = operations,
	};

	return ibv_create_qp_ex(context, &init);
}

static void connect_both(void)
{
	struct ibv_wc wc;

	reset(here);
	reset(there);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	connect_to(here, there->qp_num);
	connect_to(there, here->qp_num);
}

/* The status of the one request that was posted. If it failed, the queue pairs are connected again. */
static enum ibv_wc_status ended(unsigned int opcode)
{
	struct ibv_wc wc = completion(cq);

	if (wc.status == IBV_WC_SUCCESS)
		EQ(wc.opcode, opcode);
	else
		connect_both();
	return wc.status;
}

static int post_flush(uint32_t rkey, const void *at, size_t length, uint8_t type, uint8_t level)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(here);
	void (*wr_flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);

	/* The function pointer follows the last one that rdma-core 44 declares. */
	memcpy(&wr_flush, (char *)qp + offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void *),
	       sizeof(wr_flush));
	ibv_wr_start(qp);
	wr_flush(qp, rkey, (uintptr_t)at, length, type, level);
	return ibv_wr_complete(qp);
}

static enum ibv_wc_status flush(uint32_t rkey, const void *at, size_t length, uint8_t type, uint8_t level)
{
	EQ(post_flush(rkey, at, length, type, level), 0);
	return ended(WC_FLUSH);
}

static int post_word(uint32_t rkey, const void *at, const void *value)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(here);

	ibv_wr_start(qp);
	ibv_wr_atomic_write(qp, rkey, (uintptr_t)at, value);
	return ibv_wr_complete(qp);
}

static enum ibv_wc_status write_word(uint32_t rkey, const void *at, const void *value)
{
	EQ(post_word(rkey, at, value), 0);
	return ended(IBV_WC_ATOMIC_WRITE);
}

static int post_old(enum ibv_wr_opcode opcode, uint32_t length, const void *at)
{
	struct ibv_sge sge = { (uintptr_t)source->addr, length, source->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)at;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(here, &wr, &bad);
}

static void atomic_writes(void)
{
	uint64_t value = 0x0123456789abcdefULL;

	EQ(write_word(mr->rkey, memory + 8, &value), IBV_WC_SUCCESS);
	EQ(memcmp(memory + 8, &value, 8), 0);
	/* The value is copied when the request is posted. */
	value = 5;
	EQ(post_word(mr->rkey, memory + 16, &value), 0);
	value = 6;
	EQ(ended(IBV_WC_ATOMIC_WRITE), IBV_WC_SUCCESS);
	EQ(memory[16], 5);
	/* With the old interface. */
	memset(source->addr, 7, 8);
	EQ(post_old(IBV_WR_ATOMIC_WRITE, 8, memory + 24), 0);
	EQ(ended(IBV_WC_ATOMIC_WRITE), IBV_WC_SUCCESS);
	EQ(memcmp(memory + 24, source->addr, 8), 0);
	EQ(post_old(IBV_WR_ATOMIC_WRITE, 4, memory + 24), EINVAL);
	EQ(post_old(IBV_WR_ATOMIC_WRITE, 8, memory + 28), EINVAL);
	EQ(post_word(mr->rkey, memory + 28, &value), EINVAL);
	/* It needs the rights of a WRITE. */
	EQ(write_word(closed->rkey, memory, &value), IBV_WC_REM_ACCESS_ERR);
	EQ(write_word(mr->rkey, memory + LENGTH, &value), IBV_WC_REM_ACCESS_ERR);
}

static void flushes(void)
{
	int i;

	for (i = 0; i < 100; i++) {
		struct ibv_wc wc;

		memset(source->addr, i, 64);
		EQ(post_old(IBV_WR_RDMA_WRITE, 64, memory), 0);
		EQ(post_flush(mr->rkey, memory, 64, GLOBAL, i % 2 ? REGION : RANGE), 0);
		wc = completion(cq);
		EQ(wc.status, IBV_WC_SUCCESS);
		EQ(wc.opcode, IBV_WC_RDMA_WRITE);
		EQ(ended(WC_FLUSH), IBV_WC_SUCCESS);
		EQ(memory[63], i);
	}
	/* The range is ignored if the whole region is flushed. */
	EQ(flush(mr->rkey, memory - 4096, 12345678, GLOBAL, REGION), IBV_WC_SUCCESS);
	EQ(flush(mr->rkey, memory + 8, LENGTH, GLOBAL, RANGE), IBV_WC_REM_ACCESS_ERR);
	EQ(flush(mr->rkey ^ 0x100, memory, 8, GLOBAL, RANGE), IBV_WC_REM_ACCESS_ERR);
	EQ(flush(closed->rkey, memory, 8, GLOBAL, RANGE), IBV_WC_REM_ACCESS_ERR);
	/* There is no persistent memory. */
	EQ(flush(mr->rkey, memory, 8, PERSISTENT, RANGE), IBV_WC_REM_ACCESS_ERR);
	REFUSED(ibv_reg_mr(pd, memory, LENGTH, ACCESS_FLUSH_PERSISTENT), EOPNOTSUPP);
	EQ(post_flush(mr->rkey, memory, 8, 0, RANGE), EINVAL);
	EQ(post_flush(mr->rkey, memory, 8, GLOBAL, 2), EINVAL);
	/* The old interface has no fields for it. */
	EQ(post_old((enum ibv_wr_opcode)14, 8, memory), EOPNOTSUPP);
}

int main(void)
{
	struct ibv_device_attr_ex device;

	context = open_first();
	EQ(ibv_query_device_ex(context, NULL, &device), 0);
	EQ(!!(device.device_cap_flags_ex & CAP_FLUSH_GLOBAL), 1);
	EQ(!!(device.device_cap_flags_ex & CAP_FLUSH_PERSISTENT), 0);
	EQ(!!(device.device_cap_flags_ex & CAP_ATOMIC_WRITE), 1);
	MADE(pd = ibv_alloc_pd(context));
	MADE(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	MADE(memory = aligned_alloc(4096, LENGTH));
	MADE(mr = ibv_reg_mr(pd, memory, LENGTH, EVERYTHING | ACCESS_FLUSH_GLOBAL));
	MADE(closed = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_REMOTE_READ));
	MADE(source = ibv_reg_mr(pd, calloc(1, 64), 64, EVERYTHING));
	REFUSED(queue_pair(IBV_QPT_UC, WITH_FLUSH), EOPNOTSUPP);
	REFUSED(queue_pair(IBV_QPT_UC, WITH_ATOMIC_WRITE), EOPNOTSUPP);
	REFUSED(queue_pair(IBV_QPT_UC, IBV_QP_EX_WITH_SEND_WITH_INV), EOPNOTSUPP);
	MADE(here = queue_pair(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | WITH_FLUSH | WITH_ATOMIC_WRITE));
	MADE(there = queue_pair(IBV_QPT_RC, IBV_QP_EX_WITH_SEND));
	connect_both();
	atomic_writes();
	flushes();
	EQ(ibv_destroy_qp(here), 0);
	EQ(ibv_destroy_qp(there), 0);
	EQ(ibv_dereg_mr(mr), 0);
	EQ(ibv_dereg_mr(closed), 0);
	EQ(ibv_dereg_mr(source), 0);
	EQ(ibv_destroy_cq(cq), 0);
	EQ(ibv_dealloc_pd(pd), 0);
	EQ(ibv_close_device(context), 0);
	printf("placement: %d checks passed\n", checks);
	return 0;
}
