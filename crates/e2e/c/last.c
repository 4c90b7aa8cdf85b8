/* Shows that a message is acknowledged although its receiver disconnects at its completion.
 *
 *     last modify|destroy
 *
 * Two processes play ping-pong. When the receiver of the last message has its completion it moves its
 * queue pair to the error state, or destroys it, as its first act. The sender's completion must be a
 * success all the same: hardware has acknowledged by then. Prints "last: acknowledged". */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 200, LENGTH = 64 };

struct remote {
	uint32_t qpn;
	union ibv_gid gid;
};

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char buffer[2][LENGTH];

static void must(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "last: %s failed\n", what);
	exit(1);
}

static void connect_to(int peer)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	must(list && list[0], "finding a device");
	struct ibv_context *context = ibv_open_device(list[0]);
	must(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	must(pd && mr && cq, "making objects");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = ibv_create_qp(pd, &init);
	must(qp != NULL, "ibv_create_qp");

	struct remote own = { .qpn = qp->qp_num }, other;
	must(ibv_query_gid(context, 1, 1, &own.gid) == 0, "ibv_query_gid");
	must(write(peer, &own, sizeof own) == sizeof own, "write");
	must(read(peer, &other, sizeof other) == sizeof other, "read");

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			   IBV_QP_ACCESS_FLAGS) == 0, "INIT");
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = other.qpn, .min_rnr_timer = 12, .max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = other.gid, .sgid_index = 1, .hop_limit = 64 } } };
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			   IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1 };
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

static void receive(void)
{
	struct ibv_sge sge = { (uintptr_t)buffer[0], LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	must(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
}

static void send_one(void)
{
	struct ibv_sge sge = { (uintptr_t)buffer[1], LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	must(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
}

/* Polls until this many sends and receives have completed since the start. */
static void wait_for(int sends, int receives)
{
	static int sent, received;
	struct ibv_wc wc;
	while (sent < sends || received < receives) {
		int count = ibv_poll_cq(cq, 1, &wc);
		must(count >= 0, "ibv_poll_cq");
		if (count == 0)
			continue;
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "last: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.opcode == IBV_WC_SEND)
			sent++;
		else
			received++;
	}
}

int main(int argc, char **argv)
{
	int ends[2], status;
	char go = 0;
	must(argc == 2, "counting arguments");
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
	pid_t child = fork();
	must(child >= 0, "fork");
	int peer = ends[child == 0];
	connect_to(peer);
	receive();
	must(write(peer, &go, 1) == 1 && read(peer, &go, 1) == 1, "meeting");
	if (child == 0) {
		for (int i = 0; i < ROUNDS; i++) {
			wait_for(i, i + 1);
			receive();
			send_one();
		}
		wait_for(ROUNDS, ROUNDS + 1);
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		if (!strcmp(argv[1], "modify"))
			must(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0, "ERR");
		else
			must(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
		/* A normal exit would send the acknowledgements that are still owed. */
		must(read(peer, &go, 1) == 1, "waiting");
		return 0;
	}
	for (int i = 0; i < ROUNDS; i++) {
		send_one();
		wait_for(i + 1, i + 1);
		receive();
	}
	send_one();
	wait_for(ROUNDS + 1, ROUNDS);
	puts("last: acknowledged");
	must(write(peer, &go, 1) == 1, "write");
	must(waitpid(child, &status, 0) == child && status == 0, "the other process");
	return 0;
}
