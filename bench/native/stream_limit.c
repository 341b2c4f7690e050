// The limit of a clone over TCP: one connection, sends of 1 MiB, received straight into a memfd; plain or over TLS 1.3.
//
// stream_limit send ADDRESS PORT KIND BYTES [CERTIFICATE KEY CA]: answers connections until stdin ends.
// stream_limit recv ADDRESS PORT KIND BYTES [CERTIFICATE KEY CA]: each command is one whole transfer.
// With certificates: TLS_AES_128_GCM_SHA256, both sides show one and check the other's. The time begins before the
// connect, so that it holds the handshake. The target's pages are present (the holder made them), mapped within the
// time. The CPU seconds are the receiver's; the caller reads those of the sender from /proc.
#define _GNU_SOURCE
#include "limit.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

enum { PIECE = 1 << 20 };

static struct sockaddr_in address;
static size_t bytes;
static SSL_CTX* tls;

_Noreturn static void fail_tls(const char* what) {
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  printf("{\"error\": \"%s: %s\"}\n", what, text);
  exit(1);
}

static void set_up_tls(char** files, bool server) {
  tls = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
  if (!tls || !SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) ||
      !SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256") ||
      SSL_CTX_use_certificate_chain_file(tls, files[0]) != 1 ||
      SSL_CTX_use_PrivateKey_file(tls, files[1], SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_load_verify_locations(tls, files[2], NULL) != 1)
    fail_tls("TLS set-up");
  SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
  SSL_CTX_set_num_tickets(tls, 0);
}

static SSL* start_tls(int fd, bool server) {
  SSL* ssl = SSL_new(tls);
  SSL_set_fd(ssl, fd);
  if ((server ? SSL_accept(ssl) : SSL_connect(ssl)) != 1) fail_tls("handshake");
  return ssl;
}

static void send_all(int fd, SSL* ssl, const char* from) {
  for (size_t at = 0; at < bytes;) {
    size_t n = bytes - at < PIECE ? bytes - at : PIECE, done = 0;
    if (ssl) {
      if (SSL_write_ex(ssl, from + at, n, &done) != 1) fail_tls("SSL_write");
    } else {
      ssize_t sent = send(fd, from + at, n, MSG_NOSIGNAL);
      if (sent <= 0) fail("send");
      done = (size_t)sent;
    }
    at += done;
  }
}

static void recv_all(int fd, SSL* ssl, char* to) {
  for (size_t at = 0; at < bytes;) {
    size_t n = bytes - at < PIECE ? bytes - at : PIECE, done = 0;
    if (ssl) {
      if (SSL_read_ex(ssl, to + at, n, &done) != 1) fail_tls("SSL_read");
    } else {
      ssize_t got = recv(fd, to + at, n, 0);
      if (got <= 0) fail("recv");
      done = (size_t)got;
    }
    at += done;
  }
}

static void serve(const char* kind, bool secure) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr*)&address, sizeof address) || listen(listener, 8)) fail("bind");
  Memory m = memory_create(kind, bytes);
  memory_reserve(&m);
  memory_map(&m);
  memory_pattern(m.at, bytes);
  ready();
  struct pollfd watched[2] = {{.fd = listener, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
  while (poll(watched, 2, -1) > 0 && !watched[1].revents) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) fail("accept");
    SSL* ssl = secure ? start_tls(fd, true) : NULL;
    send_all(fd, ssl, m.at);
    char end;
    shutdown(fd, SHUT_WR);
    while (recv(fd, &end, 1, 0) > 0) {
    }
    SSL_free(ssl);
    close(fd);
  }
}

static void fetch(const char* kind, bool secure) {
  ready();
  while (next_command()) {
    Memory m = memory_create(kind, bytes);
    memory_reserve(&m);
    double c0 = cpu(), t0 = now();
    memory_map(&m);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (connect(fd, (struct sockaddr*)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    SSL* ssl = secure ? start_tls(fd, false) : NULL;
    recv_all(fd, ssl, m.at);
    double t1 = now(), c1 = cpu();
    SSL_free(ssl);
    close(fd);
    memory_free(&m);
    answer(t1 - t0, c1 - c0);
  }
}

int main(int count, char** words) {
  if (count != 6 && count != 9) return 2;
  signal(SIGPIPE, SIG_IGN);
  bool server = !strcmp(words[1], "send"), secure = count == 9;
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)atoi(words[3]));
  if (!inet_aton(words[2], &address.sin_addr)) return 2;
  bytes = strtoull(words[5], NULL, 0);
  if (secure) set_up_tls(words + 6, server);
  if (server)
    serve(words[4], secure);
  else
    fetch(words[4], secure);
  return 0;
}
