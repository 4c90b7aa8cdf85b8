/* Keeps the alternate path of a queue pair loaded (automatic path migration): a thread takes asynchronous
 * events, and after each migration loads the path that was left. */
#ifndef APM_H
#define APM_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
	const char *address[2];
	int every_ms;
	uint8_t port[2], index[2]; /* of the local GIDs of the two paths */
	union ibv_gid remote[2];
	struct ibv_qp *qp;
	int current; /* the path that is the primary one */
	int migrations;
	int arrived; /* migrations that a completion has followed */
	double last, longest;
	pthread_t thread;
	bool on;
} apm = { .port = { 1, 1 }, .index = { 1, 1 } };

static int apm_arguments(char **arguments)
{
	if (!arguments[0])
		return 0;
	if (!arguments[1])
		return 1;
	apm.address[0] = arguments[0];
	apm.address[1] = arguments[1];
	apm.every_ms = arguments[2] ? atoi(arguments[2]) : 0;
	return 0;
}

/* Finds the GIDs of the addresses. */
static int apm_open(struct ibv_context *context)
{
	struct ibv_gid_entry entries[256];
	if (!apm.address[0])
		return 0;
	ssize_t count = ibv_query_gid_table(context, entries, 256, 0);
	for (int path = 0; path < 2; path++) {
		struct in6_addr wanted = { .s6_addr = { [10] = 0xff, [11] = 0xff } };
		if (inet_pton(AF_INET, apm.address[path], &wanted.s6_addr[12]) != 1 &&
		    inet_pton(AF_INET6, apm.address[path], &wanted) != 1)
			return 1;
		ssize_t at = 0;
		while (at < count && memcmp(entries[at].gid.raw, &wanted, 16))
			at++;
		if (at >= count)
			return 1;
		apm.port[path] = (uint8_t)entries[at].port_num;
		apm.index[path] = (uint8_t)entries[at].gid_index;
	}
	return 0;
}

static int apm_load(int path)
{
	struct ibv_qp_attr attr = {
		.alt_ah_attr = { .is_global = 1,
				 .port_num = apm.port[path],
				 .grh = { .sgid_index = apm.index[path],
					  .hop_limit = 64,
					  .dgid = apm.remote[path] } },
		.alt_port_num = apm.port[path],
		.alt_timeout = 14,
		.path_mig_state = IBV_MIG_REARM,
	};
	return ibv_modify_qp(apm.qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE);
}

static enum ibv_mig_state apm_state(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(apm.qp, &attr, IBV_QP_PATH_MIG_STATE, &init)) {
		fprintf(stderr, "apm: cannot query\n");
		exit(1);
	}
	return attr.path_mig_state;
}

/* Tells when both ends are ready to migrate. */
static void apm_await(void)
{
	enum ibv_mig_state state;
	while ((state = apm_state()) == IBV_MIG_REARM)
		usleep(200);
	if (state == IBV_MIG_ARMED) {
		printf("apm: armed\n");
		fflush(stdout);
	}
}

static void *apm_run(void *unused)
{
	struct ibv_async_event event;
	(void)unused;
	apm_await();
	while (!ibv_get_async_event(apm.qp->context, &event)) {
		int type = event.event_type;
		ibv_ack_async_event(&event);
		if (type == IBV_EVENT_PATH_MIG) {
			int left = apm.current;
			apm.current = 1 - left;
			__atomic_add_fetch(&apm.migrations, 1, __ATOMIC_RELEASE);
			int error;
			/* Its address may have been removed; when it is back, it may have another index. */
			while ((error = apm_open(apm.qp->context) ? EINVAL : apm_load(left)) == EINVAL &&
			       apm_state() == IBV_MIG_MIGRATED)
				usleep(1000);
			if (error && error != EINVAL) {
				fprintf(stderr, "apm: cannot load the path that was left: %s\n", strerror(error));
				exit(1);
			}
			apm_await();
		} else if (type == IBV_EVENT_PATH_MIG_ERR) {
			printf("apm: the alternate path leads nowhere\n");
			fflush(stdout);
		}
	}
	return NULL;
}

static void *apm_migrate(void *unused)
{
	(void)unused;
	for (;;) {
		struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };
		usleep((unsigned)apm.every_ms * 1000);
		if (apm_state() == IBV_MIG_ARMED) {
			/* The peer may have migrated meanwhile, and this end be in REARM again. */
			int error = ibv_modify_qp(apm.qp, &attr, IBV_QP_PATH_MIG_STATE);
			if (error && error != EINVAL) {
				fprintf(stderr, "apm: cannot migrate: %s\n", strerror(error));
				exit(1);
			}
		}
	}
	return NULL;
}

/* Loads the alternate path and begins to keep it loaded. */
static int apm_start(struct ibv_qp *qp, const uint8_t *gid, const uint8_t *other)
{
	pthread_t migrator;
	if (!apm.address[0])
		return 0;
	apm.qp = qp;
	memcpy(apm.remote[0].raw, gid, 16);
	memcpy(apm.remote[1].raw, other, 16);
	apm.on = true;
	return apm_load(1) || pthread_create(&apm.thread, NULL, apm_run, NULL) ||
	       (apm.every_ms && pthread_create(&migrator, NULL, apm_migrate, NULL));
}

/* Notes that something completed: the time since the last completion is part of a blackout if there was a
 * migration in between. */
static void apm_completed(double now)
{
	if (!apm.on)
		return;
	double gap = apm.last ? now - apm.last : 0;
	apm.last = now;
	if (gap > apm.longest)
		apm.longest = gap;
	int migrations = __atomic_load_n(&apm.migrations, __ATOMIC_ACQUIRE);
	if (migrations != apm.arrived && !apm.every_ms) {
		printf("apm: migrated to %s, nothing completed for %.3f ms\n", apm.address[apm.current],
		       apm.longest * 1e3);
		fflush(stdout);
		apm.longest = 0;
	}
	apm.arrived = migrations;
}

static void apm_end(void)
{
	if (apm.on)
		printf("apm: migrations=%d\n", apm.migrations);
}
#endif
