// Makes the queue pairs of a bond device keep to a member, and asks by which one they send. Built against
// libibverbs alone: the functions are found by their names.
//
//   lag_port -s PORT                server
//   lag_port -c ADDRESS PORT 121    client: keeps to member 1, to 2, to 1, and goes on until it is killed
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));      \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

struct end {
    uint32_t qpn, psn;
    union ibv_gid gid;
    uint64_t address;
    uint32_t rkey;
};

static char memory[1 << 20];

static int meet(const char *address, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = address ? 0 : AI_PASSIVE}, *to;
    CHECK(!getaddrinfo(address, port, &hints, &to));
    int fd = socket(to->ai_family, to->ai_socktype, 0), on = 1;
    CHECK(fd >= 0);
    if (address) {
        CHECK(!connect(fd, to->ai_addr, to->ai_addrlen));
        return fd;
    }
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    CHECK(!bind(fd, to->ai_addr, to->ai_addrlen) && !listen(fd, 1));
    return accept(fd, NULL, NULL);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client = argc == 5;
    CHECK(argc == 3 || argc == 5);
    int (*modify)(struct ibv_qp *, uint8_t) = dlsym(RTLD_DEFAULT, "polypath_modify_qp_lag_port");
    int (*query)(struct ibv_qp *, uint8_t *, uint8_t *) =
        dlsym(RTLD_DEFAULT, "polypath_query_qp_lag_port");
    CHECK(modify && query);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_mr *mr =
        ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(pd && cq && mr);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1,
                                            .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    printf("modify: %s\n", strerror(modify(qp, 9)));
    struct end own = {.qpn = qp->qp_num, .psn = 7, .address = (uintptr_t)memory, .rkey = mr->rkey};
    // The first IPv4 address.
    int index = -1;
    for (int at = 0; at < 64 && index < 0; at++) {
        if (!ibv_query_gid(context, 1, at, &own.gid) && own.gid.raw[10] == 0xff &&
            own.gid.raw[11] == 0xff)
            index = at;
    }
    CHECK(index >= 0);
    int fd = is_client ? meet(argv[2], argv[3]) : meet(NULL, argv[2]);
    struct end peer;
    CHECK(write(fd, &own, sizeof own) == sizeof own);
    CHECK(recv(fd, &peer, sizeof peer, MSG_WAITALL) == sizeof peer);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = peer.qpn,
                                .rq_psn = peer.psn,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 12,
                                .ah_attr = {.is_global = 1, .port_num = 1,
                                            .grh = {.dgid = peer.gid, .sgid_index = index}}};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = own.psn, .timeout = 14,
                                .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
    char byte = 0;
    CHECK(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1);
    printf("connected\n");
    if (!is_client) {
        // The engine answers by itself.
        return read(fd, &byte, 1) < 0;
    }
    // Keeps to each member in turn, until it is the one in use; then tells whenever another one is.
    const char *wanted = argv[4];
    uint8_t set = 255, active = 255, told = 255;
    printf("before: %s", strerror(query(qp, &set, &active)));
    printf(", set %d\n", set);
    for (int round = 0;;) {
        if (wanted[round])
            CHECK(!modify(qp, wanted[round] - '0'));
        struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 4096, .lkey = mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.rdma = {.remote_addr = peer.address, .rkey = peer.rkey}}, *bad;
        CHECK(!ibv_post_send(qp, &wr, &bad));
        struct ibv_wc wc;
        int found;
        while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
            ;
        CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
        CHECK(!query(qp, &set, &active));
        if (wanted[round] && active == wanted[round] - '0') {
            CHECK(set == active);
            printf("round %d: kept to %d\n", round++, set);
            told = active;
        } else if (!wanted[round] && active != told) {
            printf("now by %d, set %d\n", active, set);
            told = active;
        }
    }
}
