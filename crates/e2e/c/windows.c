/* Memory windows: which access each key allows, and the errors of other accesses (IBTA 10.6.7). */
#include "objects.h"

enum { LENGTH = 8192, WINDOW = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *here, *there; /* `there` owns the memory */
static struct ibv_mr *mr, *source;
static uint8_t *memory;

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp;

	MADE(qp = ibv_create_qp(pd, &init));
	return qp;
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

/* Posts a request and returns its status. If it failed, the queue pairs are connected again. */
static enum ibv_wc_status run(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	EQ(ibv_post_send(qp, wr, &bad), 0);
	wc = completion(cq);
	if (wc.status == IBV_WC_SUCCESS)
		EQ(wc.qp_num, qp->qp_num);
	else
		connect_both();
	return wc.status;
}

static enum ibv_wc_status access_remote(enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t at)
{
	struct ibv_sge sge = { (uintptr_t)source->addr, 8, source->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode };

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = at;
		wr.wr.atomic.rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = at;
		wr.wr.rdma.rkey = rkey;
	}
	return run(here, &wr);
}

static enum ibv_wc_status write_to(uint32_t rkey, const void *at)
{
	return access_remote(IBV_WR_RDMA_WRITE, rkey, (uintptr_t)at);
}

static enum ibv_wc_status bind_type_1(struct ibv_mw *mw, struct ibv_mr *to, uint64_t length, int access)
{
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { to, (uintptr_t)memory, length, access },
	};
	struct ibv_wc wc;

	EQ(ibv_bind_mw(there, mw, &bind), 0);
	wc = completion(cq);
	if (wc.status == IBV_WC_SUCCESS)
		EQ(wc.opcode, IBV_WC_BIND_MW);
	else
		connect_both();
	return wc.status;
}

static struct ibv_send_wr bind_request(struct ibv_mw *mw, uint32_t rkey, uint64_t length, int access)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory, length, access };
	return wr;
}

static enum ibv_wc_status bind_type_2(struct ibv_mw *mw, uint32_t rkey, uint64_t length, int access)
{
	struct ibv_send_wr wr = bind_request(mw, rkey, length, access);

	return run(there, &wr);
}

static enum ibv_wc_status invalidate(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = opcode, .invalidate_rkey = rkey };

	return run(qp, &wr);
}

static void type_1(void)
{
	struct ibv_mr *closed;
	struct ibv_mw *mw;
	uint32_t old;

	MADE(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	EQ(write_to(mw->rkey, memory), IBV_WC_REM_ACCESS_ERR); /* not bound yet */
	EQ(bind_type_1(mw, mr, WINDOW, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
	EQ(write_to(mw->rkey, memory), IBV_WC_SUCCESS);
	EQ(write_to(mw->rkey, memory + WINDOW - 8), IBV_WC_SUCCESS);
	EQ(write_to(mw->rkey, memory + WINDOW - 7), IBV_WC_REM_ACCESS_ERR);
	EQ(access_remote(IBV_WR_RDMA_READ, mw->rkey, (uintptr_t)memory), IBV_WC_REM_ACCESS_ERR);
	/* The region stays while a window is bound to it. */
	EQ(ibv_dereg_mr(mr), EBUSY);
	/* It is bound again, so the old key is invalid. */
	old = mw->rkey;
	EQ(bind_type_1(mw, mr, WINDOW, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC), IBV_WC_SUCCESS);
	EQ(mw->rkey != old, 1);
	EQ(mw->rkey >> 8, old >> 8);
	EQ(access_remote(IBV_WR_RDMA_READ, old, (uintptr_t)memory), IBV_WC_REM_ACCESS_ERR);
	EQ(access_remote(IBV_WR_RDMA_READ, mw->rkey, (uintptr_t)memory), IBV_WC_SUCCESS);
	EQ(access_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, mw->rkey, (uintptr_t)memory), IBV_WC_SUCCESS);
	EQ(write_to(mw->rkey, memory), IBV_WC_REM_ACCESS_ERR);
	/* A type 1 window can't be invalidated. */
	EQ(invalidate(there, IBV_WR_LOCAL_INV, mw->rkey), IBV_WC_LOC_QP_OP_ERR);
	/* A bind with length 0 unbinds it. */
	EQ(bind_type_1(mw, mr, 0, 0), IBV_WC_SUCCESS);
	EQ(access_remote(IBV_WR_RDMA_READ, mw->rkey, (uintptr_t)memory), IBV_WC_REM_ACCESS_ERR);
	/* A window can't give rights that the region does not allow. */
	EQ(bind_type_1(mw, source, 8, IBV_ACCESS_REMOTE_READ), IBV_WC_MW_BIND_ERR);
	EQ(bind_type_1(mw, mr, LENGTH + 1, IBV_ACCESS_REMOTE_READ), IBV_WC_MW_BIND_ERR);
	MADE(closed = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_MW_BIND));
	EQ(bind_type_1(mw, closed, WINDOW, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
	EQ(bind_type_1(mw, closed, WINDOW, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
	EQ(ibv_dereg_mr(closed), EBUSY);
	EQ(ibv_dealloc_mw(mw), 0);
	EQ(ibv_dereg_mr(closed), 0);
}

static void type_2(void)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive;
	struct ibv_qp *third;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t key;
	int i;

	MADE(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	wr = bind_request(mw, mw->rkey, WINDOW, IBV_ACCESS_REMOTE_WRITE);
	/* The user chooses the low byte of its key, and may choose the one that it has. */
	EQ(run(there, &wr), IBV_WC_SUCCESS);
	EQ(write_to(mw->rkey, memory), IBV_WC_SUCCESS);
	EQ(invalidate(there, IBV_WR_LOCAL_INV, mw->rkey), IBV_WC_SUCCESS);
	EQ(bind_type_2(mw, ibv_inc_rkey(mw->rkey), 0, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
	key = ibv_inc_rkey(mw->rkey);
	EQ(bind_type_2(mw, key, WINDOW, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
	EQ(write_to(key, memory), IBV_WC_SUCCESS);
	EQ(write_to(mw->rkey, memory), IBV_WC_REM_ACCESS_ERR);
	/* It must be invalidated before it is bound again. */
	EQ(bind_type_2(mw, ibv_inc_rkey(key), WINDOW, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
	EQ(invalidate(there, IBV_WR_LOCAL_INV, key), IBV_WC_SUCCESS);
	EQ(write_to(key, memory), IBV_WC_REM_ACCESS_ERR);
	EQ(invalidate(there, IBV_WR_LOCAL_INV, key), IBV_WC_LOC_QP_OP_ERR);

	/* The peer invalidates it. */
	key = ibv_inc_rkey(key);
	EQ(bind_type_2(mw, key, WINDOW, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED), IBV_WC_SUCCESS);
	EQ(access_remote(IBV_WR_RDMA_WRITE, key, WINDOW - 8), IBV_WC_SUCCESS);
	EQ(ibv_post_recv(there, &receive, &bad_receive), 0);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key };
	EQ(ibv_post_send(here, &wr, &bad), 0);
	for (i = 0; i < 2; i++) {
		wc = completion(cq);
		EQ(wc.status, IBV_WC_SUCCESS);
		if (wc.qp_num == there->qp_num) {
			EQ(wc.wc_flags & IBV_WC_WITH_INV, IBV_WC_WITH_INV);
			EQ(wc.invalidated_rkey, key);
		}
	}
	EQ(access_remote(IBV_WR_RDMA_WRITE, key, 0), IBV_WC_REM_ACCESS_ERR);

	/* It belongs to its queue pair alone, and ends with it. */
	third = queue_pair();
	connect_to(third, here->qp_num);
	key = ibv_inc_rkey(key);
	wr = bind_request(mw, key, WINDOW, IBV_ACCESS_REMOTE_WRITE);
	EQ(ibv_post_send(third, &wr, &bad), 0);
	EQ(completion(cq).status, IBV_WC_SUCCESS);
	EQ(write_to(key, memory), IBV_WC_REM_ACCESS_ERR);
	EQ(ibv_dereg_mr(mr), EBUSY);
	EQ(ibv_destroy_qp(third), 0);

	/* A bind that is flushed leaves nothing behind, however often. */
	third = queue_pair();
	for (i = 0; i < 200; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

		connect_to(third, here->qp_num);
		EQ(ibv_modify_qp(third, &attr, IBV_QP_STATE), 0);
		wr = bind_request(mw, ibv_inc_rkey(key), 8, IBV_ACCESS_REMOTE_READ);
		EQ(ibv_post_send(third, &wr, &bad), 0);
		EQ(completion(cq).status, IBV_WC_WR_FLUSH_ERR);
		reset(third);
	}
	EQ(ibv_destroy_qp(third), 0);
	key = ibv_inc_rkey(key);
	EQ(bind_type_2(mw, key, WINDOW, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
	EQ(write_to(key, memory + WINDOW - 8), IBV_WC_SUCCESS);

	/* With the extended interface. The key of a region is not the key of a window. */
	EQ(invalidate(there, IBV_WR_LOCAL_INV, mr->rkey), IBV_WC_LOC_QP_OP_ERR);
	EQ(ibv_dealloc_mw(mw), 0);
	MADE(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	wr = bind_request(mw, ibv_inc_rkey(mw->rkey), WINDOW, IBV_ACCESS_REMOTE_WRITE);
	EQ(ibv_post_send(there, &wr, &bad), EINVAL);
	EQ(ibv_dealloc_mw(mw), 0);
}

int main(void)
{
	struct ibv_device_attr device;

	context = open_first();
	EQ(ibv_query_device(context, &device), 0);
	EQ(device.max_mw > 0, 1);
	EQ(device.device_cap_flags & IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW);
	EQ(device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	MADE(pd = ibv_alloc_pd(context));
	MADE(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	MADE(memory = calloc(1, LENGTH));
	MADE(mr = ibv_reg_mr(pd, memory, LENGTH, EVERYTHING | IBV_ACCESS_MW_BIND));
	MADE(source = ibv_reg_mr(pd, calloc(1, 8), 8, EVERYTHING));
	here = queue_pair();
	there = queue_pair();
	connect_both();
	type_1();
	type_2();
	EQ(ibv_destroy_qp(here), 0);
	EQ(ibv_destroy_qp(there), 0);
	EQ(ibv_dereg_mr(mr), 0);
	EQ(ibv_dereg_mr(source), 0);
	EQ(ibv_destroy_cq(cq), 0);
	EQ(ibv_dealloc_pd(pd), 0);
	EQ(ibv_close_device(context), 0);
	printf("windows: %d checks passed\n", checks);
	return 0;
}
