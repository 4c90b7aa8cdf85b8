/* XRC: domains, their shared receive queues, and access to these (IBTA annex A14). */
#include "objects.h"

static char path[] = "/tmp/polypath-xrc-XXXXXX";
static int file;
/* The device is opened twice; both contexts share the domain of `file`. */
static struct ibv_context *context, *other;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq *send_cq, *cq, *other_cq;
static struct ibv_mr *mr, *other_mr;
static uint8_t buffer[4096], other_buffer[4096];

static struct ibv_xrcd *domain(struct ibv_context *of, int fd, int flags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd, .oflags = flags,
	};

	return ibv_open_xrcd(of, &attr);
}

static struct ibv_srq *receive_queue(struct ibv_pd *of, struct ibv_xrcd *xrcd, struct ibv_cq *to, uint32_t *number)
{
	struct ibv_srq_init_attr_ex attr = {
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
		.attr = { .max_wr = 16, .max_sge = 1 },
		.srq_type = IBV_SRQT_XRC, .pd = of, .xrcd = xrcd, .cq = to,
	};
	struct ibv_srq *srq;

	MADE(srq = ibv_create_srq_ex(of->context, &attr));
	EQ(ibv_get_srq_num(srq, number), 0);
	return srq;
}

static void post_receive(struct ibv_srq *srq, struct ibv_mr *to, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)to->addr, to->length, to->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static struct ibv_qp *target(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd,
	};
	struct ibv_qp *qp;

	MADE(qp = ibv_create_qp_ex(context, &init));
	return qp;
}

static struct ibv_qp *initiator(void)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
		.send_cq = send_cq, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 },
	};
	struct ibv_qp *qp;

	MADE(qp = ibv_create_qp_ex(context, &init));
	return qp;
}

static enum ibv_wc_status run(struct ibv_qp *qp, struct ibv_send_wr *wr, uint32_t srqn)
{
	struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->qp_type.xrc.remote_srqn = srqn;
	EQ(ibv_post_send(qp, wr, &bad), 0);
	return completion(send_cq).status;
}

static enum ibv_wc_status send_to(struct ibv_qp *qp, uint32_t srqn)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	return run(qp, &wr, srqn);
}

/* Writes to the memory of one protection domain through the receive queue of another, or the same. */
static enum ibv_wc_status write_to(struct ibv_qp *qp, uint32_t srqn, struct ibv_mr *to)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };

	wr.wr.rdma.remote_addr = (uintptr_t)to->addr;
	wr.wr.rdma.rkey = to->rkey;
	return run(qp, &wr, srqn);
}

static void connect_both(struct ibv_qp *from, struct ibv_qp *to)
{
	reset(from);
	reset(to);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
}

static void domains(void)
{
	struct ibv_xrcd_init_attr incomplete = { .comp_mask = IBV_XRCD_INIT_ATTR_FD };
	struct ibv_xrcd *one, *two;

	REFUSED(ibv_open_xrcd(context, &incomplete), EINVAL);
	REFUSED(domain(context, file, 0), EAGAIN);
	REFUSED(domain(context, 12345, O_CREAT), EBADF);
	MADE(one = domain(context, file, O_CREAT));
	MADE(two = domain(other, file, 0));
	REFUSED(domain(other, file, O_CREAT | O_EXCL), EINVAL);
	EQ(ibv_close_xrcd(one), 0);
	EQ(ibv_close_xrcd(two), 0);
	REFUSED(domain(context, file, 0), EAGAIN); /* gone with its last handle */
	MADE(one = domain(context, -1, O_CREAT));
	EQ(ibv_close_xrcd(one), 0);
}

static void messages(void)
{
	struct ibv_qp_init_attr_ex bare = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_srq *srq, *other_srq, *foreign_srq;
	struct ibv_xrcd *xrcd, *other_xrcd, *foreign;
	uint32_t number, other_number, foreign_number;
	struct ibv_qp_open_attr open = { 0 };
	struct ibv_qp *from, *to, *opened;
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_async_event event;
	struct ibv_wc wc;

	MADE(xrcd = domain(context, file, O_CREAT));
	MADE(other_xrcd = domain(other, file, O_CREAT));
	MADE(foreign = domain(context, -1, O_CREAT));
	srq = receive_queue(pd, xrcd, cq, &number);
	other_srq = receive_queue(other_pd, other_xrcd, other_cq, &other_number);
	foreign_srq = receive_queue(pd, foreign, cq, &foreign_number);
	EQ(number != other_number && other_number != foreign_number, 1);
	EQ(number >> 24 | other_number >> 24 | foreign_number >> 24, 0);
	REFUSED(ibv_create_qp_ex(context, &bare), EINVAL);
	to = target(xrcd);
	from = initiator();
	connect_both(from, to);
	EQ(ibv_post_recv(to, &wr, &bad), EINVAL);
	EQ(ibv_post_recv(from, &wr, &bad), EINVAL);

	/* Each message goes to the queue that it names, whichever context that is of. */
	post_receive(srq, mr, 1);
	post_receive(other_srq, other_mr, 2);
	memset(buffer, 7, 64);
	EQ(send_to(from, other_number), IBV_WC_SUCCESS);
	wc = completion(other_cq);
	EQ(wc.status, IBV_WC_SUCCESS);
	EQ(wc.wr_id, 2);
	EQ(wc.qp_num, to->qp_num);
	EQ(wc.byte_len, 64);
	EQ(memcmp(other_buffer, buffer, 64), 0);
	EQ(send_to(from, number), IBV_WC_SUCCESS);
	EQ(completion(cq).wr_id, 1);

	/* The protection domain of the queue that a message names decides which keys are valid. */
	memset(buffer, 9, 64);
	EQ(write_to(from, other_number, other_mr), IBV_WC_SUCCESS);
	EQ(memcmp(other_buffer, buffer, 64), 0);
	EQ(write_to(from, number, other_mr), IBV_WC_REM_ACCESS_ERR);
	EQ(ibv_get_async_event(context, &event), 0);
	EQ(event.event_type == IBV_EVENT_COMM_EST || event.event_type == IBV_EVENT_QP_ACCESS_ERR, 1);
	MADE(event.element.qp == to ? to : NULL);
	ibv_ack_async_event(&event);
	/* A queue of another domain can't be reached. */
	connect_both(from, to);
	EQ(send_to(from, foreign_number), IBV_WC_REM_ACCESS_ERR);

	/* The target exists as long as any handle to it is open. */
	open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	open.qp_num = to->qp_num;
	open.xrcd = other_xrcd;
	open.qp_type = IBV_QPT_XRC_RECV;
	MADE(opened = ibv_open_qp(other, &open));
	EQ(opened->qp_num, to->qp_num);
	EQ(ibv_close_xrcd(xrcd), EBUSY);
	EQ(ibv_destroy_cq(other_cq), EBUSY);
	connect_both(from, opened);
	EQ(ibv_destroy_qp(to), 0);
	post_receive(srq, mr, 3);
	EQ(send_to(from, number), IBV_WC_SUCCESS);
	EQ(completion(cq).wr_id, 3);
	/* A destroyed queue can't be reached any more. */
	EQ(ibv_destroy_srq(srq), 0);
	EQ(ibv_close_xrcd(xrcd), 0);
	EQ(send_to(from, number), IBV_WC_REM_ACCESS_ERR);
	EQ(ibv_destroy_qp(opened), 0);
	REFUSED(ibv_open_qp(other, &open), EINVAL);

	EQ(ibv_destroy_qp(from), 0);
	EQ(ibv_destroy_srq(other_srq), 0);
	EQ(ibv_destroy_srq(foreign_srq), 0);
	EQ(ibv_close_xrcd(other_xrcd), 0);
	EQ(ibv_close_xrcd(foreign), 0);
}

int main(void)
{
	struct ibv_device_attr device;

	EQ((file = mkstemp(path)) >= 0, 1);
	unlink(path);
	context = open_first();
	other = open_first();
	EQ(ibv_query_device(context, &device), 0);
	EQ(device.device_cap_flags & IBV_DEVICE_XRC, IBV_DEVICE_XRC);
	MADE(pd = ibv_alloc_pd(context));
	MADE(other_pd = ibv_alloc_pd(other));
	MADE(send_cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MADE(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	MADE(other_cq = ibv_create_cq(other, 16, NULL, NULL, 0));
	MADE(mr = ibv_reg_mr(pd, buffer, sizeof(buffer), EVERYTHING));
	MADE(other_mr = ibv_reg_mr(other_pd, other_buffer, sizeof(other_buffer), EVERYTHING));
	domains();
	messages();
	EQ(ibv_dereg_mr(mr), 0);
	EQ(ibv_dereg_mr(other_mr), 0);
	EQ(ibv_destroy_cq(send_cq), 0);
	EQ(ibv_destroy_cq(cq), 0);
	EQ(ibv_destroy_cq(other_cq), 0);
	EQ(ibv_dealloc_pd(pd), 0);
	EQ(ibv_dealloc_pd(other_pd), 0);
	EQ(ibv_close_device(context), 0);
	EQ(ibv_close_device(other), 0);
	printf("xrc: %d checks passed\n", checks);
	return 0;
}
