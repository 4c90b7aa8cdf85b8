/* Programs that had too few descriptors when they first looked for devices: with enough of them, they find
 * the devices, and hear of links that go down. */
#include <sys/resource.h>
#include <sys/wait.h>
#include "objects.h"

/* Each child has one descriptor more than the child before it. */
enum { CHILDREN = 24 };

static int lowest_free(void)
{
	int fd = dup(0);

	EQ(fd >= 0, 1);
	close(fd);
	return fd;
}

/* Prints whether devices were found at first, and waits for a link to go down. */
static void hear_of_links(int left, int ready)
{
	struct rlimit few, all;
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_async_event event;
	bool first;
	int count;

	EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
	few = all;
	few.rlim_cur = (rlim_t)(lowest_free() + left);
	EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	list = ibv_get_device_list(&count);
	first = list && count > 0;
	if (list)
		ibv_free_device_list(list);
	EQ(setrlimit(RLIMIT_NOFILE, &all), 0);

	MADE(list = ibv_get_device_list(&count));
	EQ(count, 1);
	MADE(context = ibv_open_device(list[0]));
	EQ(write(ready, first ? "+" : "-", 1), 1);
	do {
		EQ(ibv_get_async_event(context, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_PORT_ERR);
}

int main(void)
{
	int pipes[2], refused = 0, i;

	EQ(pipe(pipes), 0);
	for (i = 0; i < CHILDREN; i++) {
		pid_t child = fork();

		EQ(child >= 0, 1);
		if (child == 0) {
			close(pipes[0]);
			hear_of_links(i, pipes[1]);
			_exit(0);
		}
	}
	close(pipes[1]);
	for (i = 0; i < CHILDREN; i++) {
		char first = 0;

		EQ(read(pipes[0], &first, 1), 1);
		refused += first == '-';
	}
	/* Some children failed and some did not, so each place that needs a descriptor lacked one once. */
	EQ(refused > 3, 1);
	EQ(refused < CHILDREN, 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("all are ready, %d were refused at first\n", refused);
	for (i = 0; i < CHILDREN; i++) {
		int status;

		EQ(wait(&status) > 0, 1);
		EQ(status, 0);
	}
	printf("starved: %d checks passed\n", checks);
	return 0;
}
