/* Migrates between the paths of a multi-path device (automatic path migration): each end loads an alternate
 * path, says what it hears and sees of its paths, and asks for migration again after each one. After the first
 * migration, the client makes its queue pair migrate as soon as it is ready, and both end.
 *
 *   view -s ADDRESS ALTERNATE REMOTE_ALTERNATE
 *   view -c ADDRESS ALTERNATE REMOTE_ALTERNATE */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static char buffer[2][64];
static char received; /* the first byte of the latest message */
static int is_client;
static int is_over; /* the client has seen the migration that it asked for */
static int is_ready; /* there is another path again after the first migration */

static void fail(const char *what)
{
	fprintf(stderr, "view: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(int error, int wanted, const char *what)
{
	if (error != wanted) {
		errno = error;
		fail(what);
	}
}

static const char *name(enum ibv_mig_state state)
{
	return state == IBV_MIG_MIGRATED ? "MIGRATED" : state == IBV_MIG_REARM ? "REARM" : "ARMED";
}

static enum ibv_mig_state look(struct ibv_qp_attr *attr)
{
	struct ibv_qp_init_attr init;
	check(ibv_query_qp(id->qp, attr, IBV_QP_PATH_MIG_STATE | IBV_QP_AV | IBV_QP_ALT_PATH, &init), 0,
	      "ibv_query_qp");
	return attr->path_mig_state;
}

/* Prints the ends of a path: that of the local GID's index, and the remote one. */
static void print_path(const char *which, const struct ibv_ah_attr *ah)
{
	char text[2][INET_ADDRSTRLEN];
	union ibv_gid gid;
	check(ibv_query_gid(id->verbs, ah->port_num, ah->grh.sgid_index, &gid), 0, "ibv_query_gid");
	inet_ntop(AF_INET, &gid.raw[12], text[0], sizeof text[0]);
	inet_ntop(AF_INET, &ah->grh.dgid.raw[12], text[1], sizeof text[1]);
	printf(" %s %s>%s", which, text[0], text[1]);
}

static void print(const char *what)
{
	struct ibv_qp_attr attr;
	enum ibv_mig_state state = look(&attr);
	printf("view: %s:", what);
	print_path("primary", &attr.ah_attr);
	print_path("alternate", &attr.alt_ah_attr);
	printf(" state %s\n", name(state));
	fflush(stdout);
}

static int ask(enum ibv_mig_state state)
{
	struct ibv_qp_attr attr = { .path_mig_state = state };
	return ibv_modify_qp(id->qp, &attr, IBV_QP_PATH_MIG_STATE);
}

/* Waits until there is an alternate path. */
static void await(void)
{
	struct ibv_qp_attr attr;
	while (look(&attr) == IBV_MIG_REARM)
		usleep(1000);
	print("armed");
}

static void *events(void *unused)
{
	struct ibv_async_event event;
	int migrations = 0;
	(void)unused;
	await();
	while (!ibv_get_async_event(id->verbs, &event)) {
		int type = event.event_type;
		ibv_ack_async_event(&event);
		if (type != IBV_EVENT_PATH_MIG)
			continue;
		print("migrated");
		if (++migrations == 2) {
			__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
			return NULL;
		}
		check(ask(IBV_MIG_REARM), 0, "asking for REARM");
		check(ask(IBV_MIG_MIGRATED), EINVAL, "asking for MIGRATED in REARM");
		print("asked");
		await();
		__atomic_store_n(&is_ready, 1, __ATOMIC_RELEASE);
		if (is_client)
			check(ask(IBV_MIG_MIGRATED), 0, "asking for MIGRATED");
	}
	return NULL;
}

static uint8_t gid_index(const char *address)
{
	struct ibv_gid_entry entries[256];
	struct in6_addr wanted = { .s6_addr = { [10] = 0xff, [11] = 0xff } };
	ssize_t count = ibv_query_gid_table(id->verbs, entries, 256, 0);
	inet_pton(AF_INET, address, &wanted.s6_addr[12]);
	for (ssize_t at = 0; at < count; at++)
		if (!memcmp(entries[at].gid.raw, &wanted, 16))
			return (uint8_t)entries[at].gid_index;
	errno = ENOENT;
	fail(address);
	return 0;
}

static void load(const char *local, const char *remote)
{
	struct ibv_qp_attr attr;
	look(&attr);
	attr.alt_ah_attr = attr.ah_attr;
	attr.alt_ah_attr.grh.sgid_index = gid_index(local);
	inet_pton(AF_INET, remote, &attr.alt_ah_attr.grh.dgid.raw[12]);
	attr.alt_port_num = attr.ah_attr.port_num;
	attr.alt_pkey_index = 0;
	attr.alt_timeout = 14;
	attr.path_mig_state = IBV_MIG_REARM;
	check(ibv_modify_qp(id->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0, "loading");
}

static void receive(void)
{
	if (rdma_post_recv(id, NULL, buffer[0], sizeof buffer[0], mr))
		fail("rdma_post_recv");
}

/* Waits for a message, and sends one; the client does so the other way round. */
static void exchange(void)
{
	struct ibv_wc wc;
	for (int step = 0; step < 2; step++) {
		if (step == is_client) {
			if (rdma_get_recv_comp(id, &wc) != 1 || wc.status)
				fail("receiving");
			received = buffer[0][0];
			receive();
		} else if (rdma_post_send(id, NULL, buffer[1], sizeof buffer[1], mr, 0) ||
			   rdma_get_send_comp(id, &wc) != 1 || wc.status) {
			fail("sending");
		}
	}
}

int main(int argc, char **argv)
{
	pthread_t thread;
	struct rdma_cm_id *listener = NULL;
	if (argc != 5)
		return 2;
	is_client = !strcmp(argv[1], "-c");
	struct rdma_addrinfo hints = {
		.ai_port_space = RDMA_PS_TCP, .ai_flags = is_client ? 0 : RAI_PASSIVE,
	}, *info;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };
	if (rdma_getaddrinfo(argv[2], "7473", &hints, &info))
		fail("rdma_getaddrinfo");
	if (is_client) {
		if (rdma_create_ep(&id, info, NULL, &init))
			fail("rdma_create_ep");
	} else if (rdma_create_ep(&listener, info, NULL, &init) || rdma_listen(listener, 1) ||
		   rdma_get_request(listener, &id)) {
		fail("rdma_listen");
	}
	mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	if (!mr)
		fail("rdma_reg_msgs");
	receive();
	if (is_client ? rdma_connect(id, &parameters) : rdma_accept(id, &parameters))
		fail("connecting");
	load(argv[3], argv[4]);
	if (pthread_create(&thread, NULL, events, NULL))
		fail("pthread_create");
	do {
		/* The server says that it is ready; then the client says that it is over. */
		if (!is_client)
			buffer[1][0] = __atomic_load_n(&is_ready, __ATOMIC_ACQUIRE) ? 'r' : 0;
		else if (received == 'r' && __atomic_load_n(&is_over, __ATOMIC_ACQUIRE))
			buffer[1][0] = 'e';
		exchange();
	} while ((is_client ? buffer[1][0] : received) != 'e');
	print("done");
	if (is_client)
		rdma_disconnect(id);
	return 0;
}
