/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The same turns over sockets: packets of as many bytes, back and forth. */
#define _GNU_SOURCE
#include "sysv.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int sockets[2] = {-1, -1}; /* TCP, UDP */
static char packet[MOST_BYTES];

static struct addrinfo *address(const char *host, uint16_t port, int type)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = type, .ai_flags = host ? 0 : AI_PASSIVE}, *found;
    char service[16];

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        die("find the other one's address");
    return found;
}

/* A socket of this process's that is bound to any port, which the other one is told. */
static int bound(int type, int has_net)
{
    struct addrinfo *any = address(has_net ? NULL : "127.0.0.1", 0, type);
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, type, 0);

    if (fd < 0 || bind(fd, any->ai_addr, any->ai_addrlen) != 0 || getsockname(fd, (struct sockaddr *)&at, &length) != 0)
        die("make a socket");
    freeaddrinfo(any);
    shared->port[me] = ntohs(at.sin_port);
    if (has_net ? gethostname(shared->host[me], sizeof shared->host[me]) != 0 : !strcpy(shared->host[me], "127.0.0.1"))
        die("gethostname");
    return fd;
}

static void connect_to_other(int fd, int type)
{
    struct addrinfo *other = address(shared->host[!me], shared->port[!me], type);

    if (connect(fd, other->ai_addr, other->ai_addrlen) != 0)
        die("connect");
    freeaddrinfo(other);
}

static int is_udp(const struct block *b)
{
    return strncmp(b->name, "udp", 3) == 0;
}

void open_socket(const struct block *b, int has_net)
{
    static const int on = 1;
    static const struct timeval late = {.tv_usec = 200000};
    int type = is_udp(b) ? SOCK_DGRAM : SOCK_STREAM, *fd = &sockets[is_udp(b)];

    if (*fd >= 0)
        return;
    *fd = bound(type, has_net);
    if (type == SOCK_STREAM && me == 0 && listen(*fd, 1) != 0)
        die("listen");
    meet();
    if (type == SOCK_DGRAM || me == 1) {
        connect_to_other(*fd, type);
    } else {
        int listening = *fd;

        *fd = accept(listening, NULL, NULL);
        close(listening);
    }
    if (type == SOCK_STREAM ? setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0
                            : setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &late, sizeof late) != 0)
        die("set up the socket");
    meet();
}

static void send_packet(int fd, const struct block *b, uint64_t number)
{
    memset(packet, me + 'a', b->bytes);
    memcpy(packet, &number, sizeof number);
    if (send(fd, packet, b->bytes, 0) != (ssize_t)b->bytes)
        die("send");
}

/* Gives the number of a whole packet; 0 if none comes for a while, which may be a datagram's fate. */
static uint64_t take_packet(int fd, const struct block *b, int spins)
{
    double late = now_seconds() + 0.2;
    uint64_t number;
    size_t have = 0;

    for (uint32_t looks = 1; have < b->bytes; looks++) {
        ssize_t got = recv(fd, packet + have, b->bytes - have, spins ? MSG_DONTWAIT : 0);

        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            die("recv");
        have += got > 0 ? (size_t)got : 0;
        if (got < 0 && is_udp(b) && (!spins || (looks % 1024 == 0 && now_seconds() > late)))
            return 0;
    }
    memcpy(&number, packet, sizeof number);
    if (packet[b->bytes - 1] != !me + 'a') {
        errno = 0;
        die("a packet has not what the other one wrote");
    }
    return number;
}

double run_socket(const struct block *b, uint64_t rounds)
{
    /* Numbers go on from run to run, so that a datagram that comes twice is known. */
    static uint64_t packets;
    int spins = strstr(b->name, "-spin") != NULL, fd = sockets[is_udp(b)];
    double start, batch;

    meet();
    batch = start = now_seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t number;

        packets++;
        if (me == 0) {
            send_packet(fd, b, packets);
            while ((number = take_packet(fd, b, spins)) != packets)
                if (number == 0)
                    send_packet(fd, b, packets);
            if ((i + 1) % BATCH == 0)
                batch = add_batch(batch, 2 * BATCH, 0);
            continue;
        }
        while ((number = take_packet(fd, b, spins)) != packets)
            if (number != 0 && number == packets - 1)
                send_packet(fd, b, number);
        send_packet(fd, b, packets);
    }
    if (me == 0)
        atomic_store(&shared->answered, packets);
    /* The last answer may be lost as well. */
    while (me == 1 && atomic_load(&shared->answered) < packets) {
        struct pollfd one = {.fd = fd, .events = POLLIN};

        if (is_udp(b) && poll(&one, 1, 1) == 1 && take_packet(fd, b, 1) == packets)
            send_packet(fd, b, packets);
    }
    return now_seconds() - start;
}

static double packets_seen(const char *protocol, const char *in, const char *out)
{
    char names[2048], values[2048];
    FILE *file = fopen("/proc/net/snmp", "r");
    double seen = 0;

    while (file && fgets(names, sizeof names, file) && fgets(values, sizeof values, file)) {
        char *name_at, *value_at, *name = strtok_r(names, " \n", &name_at), *value = strtok_r(values, " \n", &value_at);

        if (!name || strcmp(name, protocol) != 0)
            continue;
        while ((name = strtok_r(NULL, " \n", &name_at)) && (value = strtok_r(NULL, " \n", &value_at)))
            if (strcmp(name, in) == 0 || strcmp(name, out) == 0)
                seen += atof(value);
    }
    if (file)
        fclose(file);
    return seen;
}

double seen_by(const struct block *b)
{
    if (is_udp(b))
        return packets_seen("Udp:", "InDatagrams", "OutDatagrams");
    return b->run == run_socket ? packets_seen("Tcp:", "InSegs", "OutSegs") : 0;
}
