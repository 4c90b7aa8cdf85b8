/* Queue pairs of up to two devices of one process join a multicast group: each receives from its own device's
 * interfaces.
 *
 *   groups send       to the group, by all devices in turn, until it is ended
 *   groups receive    with two devices: joins, leaves, joins again, and checks what each queue pair receives
 *   groups hear       by the first device: joins, and tells of each hundred messages, until it is ended
 */
#include <arpa/inet.h>
#include "objects.h"

enum { GRH = 40, QKEY = 0x1111, DEVICES = 2, ROOM = 64, RECEIVES = 512, SOME = 5, MANY = 100, LENGTH = 5 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	char mark;
	uint32_t number;
};

static union ibv_gid group;
static int devices;

static void receive(struct end *end, uint64_t at)
{
	struct ibv_sge sge = { (uintptr_t)end->memory + at * ROOM, ROOM, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 }, *bad;

	EQ(ibv_post_recv(end->qp, &wr, &bad), 0);
}

static void make(struct end *end, struct ibv_device *device, char mark)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	uint64_t i;

	MADE(end->context = ibv_open_device(device));
	MADE(end->pd = ibv_alloc_pd(end->context));
	MADE(end->cq = ibv_create_cq(end->context, RECEIVES + 4, NULL, NULL, 0));
	MADE(end->memory = calloc(RECEIVES, ROOM));
	MADE(end->mr = ibv_reg_mr(end->pd, end->memory, RECEIVES * ROOM, IBV_ACCESS_LOCAL_WRITE));
	end->mark = mark;
	end->number = 0;
	init.send_cq = init.recv_cq = end->cq;
	MADE(end->qp = ibv_create_qp(end->pd, &init));
	EQ(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQ(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	EQ(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	for (i = 0; i < RECEIVES; i++)
		receive(end, i);
}

static void send_for_ever(struct end *ends)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .sgid_index = GID_INDEX, .hop_limit = 1, .dgid = group },
	};
	struct ibv_ah *ah[DEVICES];
	int i;

	for (i = 0; i < devices; i++)
		MADE(ah[i] = ibv_create_ah(ends[i].pd, &attr));
	for (i = 0;; i = (i + 1) % devices) {
		struct ibv_sge sge = { (uintptr_t)ends[i].memory, LENGTH, ends[i].mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

		ends[i].memory[0] = (uint8_t)ends[i].mark;
		ends[i].number++;
		memcpy(ends[i].memory + 1, &ends[i].number, sizeof(uint32_t));
		wr.wr.ud.ah = ah[i];
		wr.wr.ud.remote_qpn = 0xffffff;
		wr.wr.ud.remote_qkey = QKEY;
		EQ(ibv_post_send(ends[i].qp, &wr, &bad), 0);
		EQ(completion(ends[i].cq).status, IBV_WC_SUCCESS);
		/* Pauses, so that the receivers can take everything. */
		usleep(500);
	}
}

/* Takes the messages that have come. They must have come by the queue pair's own interface, each once. */
static int heard(struct end *end)
{
	struct ibv_wc wc;
	uint32_t number;
	int n, count = 0;

	while ((n = ibv_poll_cq(end->cq, 1, &wc)) > 0) {
		EQ(wc.status, IBV_WC_SUCCESS);
		EQ(wc.byte_len, GRH + LENGTH);
		EQ(end->memory[wc.wr_id * ROOM + GRH], end->mark);
		memcpy(&number, end->memory + wc.wr_id * ROOM + GRH + 1, sizeof(number));
		EQ(number == end->number, 0);
		end->number = number;
		receive(end, wc.wr_id);
		count++;
	}
	EQ(n, 0);
	return count;
}

/* Waits until both receive, or until the one that is a member does and the other does not. */
static void expect(struct end *ends, bool first, bool second)
{
	int counts[DEVICES] = { 0, 0 };

	while ((first && counts[0] < SOME) || (second && counts[1] < SOME)) {
		counts[0] += heard(&ends[0]);
		counts[1] += heard(&ends[1]);
		EQ(!first && counts[0] > 0, 0);
		EQ(!second && counts[1] > 0, 0);
	}
}

static void hear_for_ever(struct end *end)
{
	int count = 0;

	for (;;) {
		for (; count < MANY; usleep(500))
			count += heard(end);
		count -= MANY;
		printf("groups: %d more messages\n", MANY);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct end ends[DEVICES];

	MADE(list);
	memset(&group, 0, sizeof(group));
	memset(group.raw + 10, 0xff, 2);
	EQ(inet_pton(AF_INET, "239.1.2.3", group.raw + 12), 1);
	for (; devices < DEVICES && list[devices]; devices++)
		make(&ends[devices], list[devices], (char)('0' + devices));
	if (argc > 1 && !strcmp(argv[1], "send"))
		send_for_ever(ends);

	EQ(ibv_attach_mcast(ends[0].qp, &group, 0), 0);
	if (argc > 1 && !strcmp(argv[1], "hear"))
		hear_for_ever(&ends[0]);
	EQ(devices, DEVICES);
	EQ(ibv_attach_mcast(ends[1].qp, &group, 0), 0);
	expect(ends, true, true);
	/* One queue pair leaves. The interface of the other stays in the group. */
	EQ(ibv_detach_mcast(ends[0].qp, &group, 0), 0);
	heard(&ends[0]);
	expect(ends, false, true);
	EQ(ibv_attach_mcast(ends[0].qp, &group, 0), 0);
	expect(ends, true, true);
	EQ(ibv_detach_mcast(ends[1].qp, &group, 0), 0);
	heard(&ends[1]);
	expect(ends, true, false);
	printf("groups: %d checks passed\n", checks);
	return 0;
}
