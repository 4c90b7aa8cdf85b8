/* Looks for devices with every function of the C library for this, and checks that the results agree. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"

static int failed;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: %s: ", __LINE__, #condition);                                         \
            printf(__VA_ARGS__);                                                                   \
            printf(" (%s)\n", strerror(errno));                                                    \
            failed = 1;                                                                            \
        }                                                                                          \
    } while (0)

static const char *device;
static char path[PATH_MAX];

/* A path of the device. */
static const char *of_device(const char *rest) {
    snprintf(path, sizeof(path), CLASS "/%s%s", device, rest);
    return path;
}

static void lists(void) {
    struct dirent **entries;
    int count = scandir(CLASS, &entries, NULL, alphasort);
    CHECK(count >= 3, "%d entries", count);
    CHECK(strcmp(entries[count - 1]->d_name, device) == 0, "%s", entries[count - 1]->d_name);
    count = scandirat(AT_FDCWD, CLASS, &entries, NULL, alphasort);
    CHECK(count >= 3, "%d entries", count);
    CHECK(scandir(of_device("/ports"), &entries, NULL, alphasort) == 3, "no ports");
}

static void patterns(void) {
    static const char *const all[] = {CLASS "/*", CLASS "/*/node_type",
                                      CLASS "/*/ports/[0-9]/gids/1", "/dev/infiniband/uverbs*"};
    for (size_t at = 0; at < sizeof(all) / sizeof(*all); at++) {
        glob_t found = {0};
        int status = glob(all[at], 0, NULL, &found);
        CHECK(status == 0 && found.gl_pathc >= 1, "glob(%s) is %d", all[at], status);
        if (status == 0) {
            CHECK(strncmp(found.gl_pathv[0], all[at], 16) == 0, "%s", found.gl_pathv[0]);
            globfree(&found);
        }
    }
    glob_t found = {0};
    CHECK(glob(CLASS "/nosuch*", 0, NULL, &found) == GLOB_NOMATCH, "a match for nothing");
    CHECK(glob("/etc/host*", 0, NULL, &found) == 0, "other files are not found any more");
}

static const char *below;
static int seen_type, seen_outside, wrong_base;

static int visit(const char *name, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    seen_type |= strstr(name, "/node_type") != NULL;
    seen_outside |= strncmp(name, below, strlen(below)) != 0;
    wrong_base |= strchr(name + place->base, '/') != NULL || name[place->base - 1] != '/';
    return 0;
}

static int visit_plainly(const char *name, const struct stat *status, int kind) {
    struct FTW place = {.base = (int)(strrchr(name, '/') - name) + 1};
    return visit(name, status, kind, &place);
}

static void walks(void) {
    below = CLASS;
    CHECK(nftw(CLASS, visit, 8, FTW_MOUNT | FTW_CHDIR | FTW_PHYS) == 0, "nftw with FTW_CHDIR");
    CHECK(nftw(of_device("/ports"), visit, 8, FTW_PHYS) == 0, "nftw");
    CHECK(ftw(of_device("/ports"), visit_plainly, 8) == 0, "ftw");
    CHECK(!seen_type, "links are followed");
    below = "/sys/devices/virtual/polypath";
    CHECK(nftw64(below, (int (*)(const char *, const struct stat64 *, int, struct FTW *))visit, 8,
                 FTW_PHYS) == 0,
          "nftw64");
    CHECK(seen_type, "no node_type");
    CHECK(!seen_outside && !wrong_base, "paths of another place");
}

static void places(void) {
    char text[PATH_MAX], expect[PATH_MAX];
    snprintf(expect, sizeof(expect), "/sys/devices/virtual/polypath/%s", device);
    CHECK(realpath(of_device("/device"), text) != NULL, "realpath");
    CHECK(strcmp(text, expect) == 0, "%s", text);
    char *name = canonicalize_file_name(of_device("/device"));
    CHECK(name && strcmp(name, expect) == 0, "%s", name);
    CHECK(access(expect, R_OK) == 0, "what realpath gave is not there");
    /* Does what a shell's `cd` does, which then asks for the current directory. */
    CHECK(chdir(CLASS) == 0, "chdir");
    CHECK(getcwd(text, sizeof(text)) && strcmp(text, CLASS) == 0, "%s", text);
    CHECK(getcwd(text, sizeof(CLASS)) && strcmp(text, CLASS) == 0, "a buffer that is just enough");
    CHECK(!getcwd(text, sizeof(CLASS) - 1) && errno == ERANGE, "a buffer that is too small");
    struct stat status;
    CHECK(stat(device, &status) == 0 && S_ISDIR(status.st_mode), "relative");
    int fd = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(fstatat(fd, device, &status, 0) == 0, "relative to a descriptor");
    CHECK(chdir("/") == 0 && fchdir(fd) == 0, "fchdir");
    CHECK(getcwd(text, sizeof(text)) && strcmp(text, CLASS) == 0, "%s", text);
    snprintf(expect, sizeof(expect), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(expect, text, sizeof(text));
    CHECK(length == (ssize_t)strlen(CLASS) && memcmp(text, CLASS, length) == 0, "%.*s", (int)length,
          text);
    close(fd);
    CHECK(chdir("/sys/class") == 0, "chdir");
    CHECK(access("infiniband", F_OK) == 0 && access("./infiniband", F_OK) == 0, "from above");
    CHECK(chdir("/") == 0 && access("sys/class/infiniband", F_OK) == 0, "from the root");
}

static void statuses(void) {
    struct stat link, target;
    struct statx more;
    struct statfs system;
    char text[256];
    CHECK(lstat(of_device(""), &link) == 0 && S_ISLNK(link.st_mode), "no link");
    CHECK(stat(of_device(""), &target) == 0 && S_ISDIR(target.st_mode), "no directory");
    CHECK(statx(AT_FDCWD, of_device(""), 0, STATX_TYPE, &more) == 0, "statx");
    CHECK(readlink(of_device(""), text, sizeof(text)) == link.st_size, "another length");
    CHECK(faccessat(AT_FDCWD, of_device("/node_guid"), R_OK, 0) == 0, "faccessat");
    CHECK(euidaccess(of_device("/node_guid"), R_OK) == 0, "euidaccess");
    CHECK(statfs(of_device(""), &system) == 0, "statfs");
    /* The calls that `ls -l` makes for each entry. */
    errno = 0;
    ssize_t got = lgetxattr(of_device(""), "security.selinux", text, sizeof(text));
    CHECK(got >= 0 || errno != ENOENT, "lgetxattr");
    got = getxattr(of_device("/node_guid"), "system.posix_acl_access", text, sizeof(text));
    CHECK(got >= 0 || errno != ENOENT, "getxattr");
    CHECK(llistxattr(of_device(""), text, sizeof(text)) >= 0 || errno != ENOENT, "llistxattr");
}

static void contents(void) {
    static const char *const files[] = {"/node_type", "/node_guid", "/sys_image_guid", "/fw_ver",
                                        "/hca_type", "/board_id", "/device/vendor",
                                        "/device/device", "/device/numa_node", "/ports/1/state",
                                        "/ports/1/rate", "/ports/1/pkeys/0", "/ports/1/gids/0",
                                        "/ports/1/gid_attrs/types/0",
                                        "/ports/1/counters/port_xmit_data"};
    for (size_t at = 0; at < sizeof(files) / sizeof(*files); at++) {
        FILE *file = fopen64(of_device(files[at]), "re");
        char line[128] = "";
        CHECK(file && fgets(line, sizeof(line), file), "%s can't be read", files[at]);
        CHECK(strchr(line, '\n'), "%s has no line", files[at]);
        if (file)
            fclose(file);
    }
    errno = 0;
    CHECK(open(of_device("/node_desc"), O_WRONLY) < 0 && errno == EACCES, "writable");
    CHECK(!fopen(of_device("/node_desc"), "w") && errno == EACCES, "writable");
    CHECK(open(of_device("/nosuch"), O_RDONLY) < 0 && errno == ENOENT, "there");
}

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    device = arguments[1];
    lists();
    patterns();
    statuses();
    contents();
    walks();
    places();
    if (!failed)
        printf("all checks passed\n");
    return failed;
}
