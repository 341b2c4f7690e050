#include "tls.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <new>
#include <string>
#include <system_error>

#include "errors.hpp"

namespace flashboot {

// OpenSSL's own socket BIO writes with write(2), which raises SIGPIPE, and hides errno.
struct SocketBio {
  static TlsSession::Socket& of(BIO* bio) { return *static_cast<TlsSession::Socket*>(BIO_get_data(bio)); }

  static int finish(BIO* bio, ssize_t result, int retry) {
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
    } else if (result < 0) {
      of(bio).error = errno;
    }
    return static_cast<int>(result);
  }

  static int write(BIO* bio, const char* data, int size) {
    BIO_clear_retry_flags(bio);
    ssize_t sent;
    do {
      sent = ::send(of(bio).fd, data, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return finish(bio, sent, BIO_FLAGS_WRITE);
  }

  static int read(BIO* bio, char* data, int size) {
    BIO_clear_retry_flags(bio);
    ssize_t got;
    do {
      got = ::recv(of(bio).fd, data, static_cast<std::size_t>(size), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    of(bio).ended = got == 0;
    return finish(bio, got, BIO_FLAGS_READ);
  }

  static long ctrl(BIO* bio, int command, long, void*) {
    switch (command) {
      case BIO_CTRL_FLUSH:
        return 1;
      case BIO_CTRL_EOF:
        return of(bio).ended ? 1 : 0;
      default:
        return 0;
    }
  }

  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {  // lives as long as the process
      BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "flashboot socket");
      if (method == nullptr) {
        throw std::bad_alloc();
      }
      BIO_meth_set_write(method, &write);
      BIO_meth_set_read(method, &read);
      BIO_meth_set_ctrl(method, &ctrl);
      return method;
    }();
    return made;
  }
};

namespace {

// URI SANs that are printable ASCII; anything else is nobody's name.
std::vector<std::string> uris_of(X509* certificate) {
  std::vector<std::string> uris;
  auto* names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {  // -1 when there are none
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) {
      continue;
    }
    const ASN1_IA5STRING* value = name->d.uniformResourceIdentifier;
    const auto* data = reinterpret_cast<const char*>(ASN1_STRING_get0_data(value));
    std::string uri(data, static_cast<std::size_t>(ASN1_STRING_length(value)));
    if (uri.find_first_not_of("!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
                              "abcdefghijklmnopqrstuvwxyz{|}~") == std::string::npos) {
      uris.push_back(std::move(uri));
    }
  }
  GENERAL_NAMES_free(names);
  return uris;
}

}  // namespace

TlsSession::TlsSession(const TlsContext& context, int fd) : socket_{.fd = fd}, ssl_(SSL_new(context.get())) {
  BIO* bio = ssl_ ? BIO_new(SocketBio::method()) : nullptr;
  if (bio == nullptr) {
    throw std::bad_alloc();
  }
  BIO_set_data(bio, &socket_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);  // takes the BIO over
  if (context.server()) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
}

Step TlsSession::handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    X509* certificate = SSL_get0_peer_certificate(ssl_.get());
    if (certificate == nullptr || SSL_get_verify_result(ssl_.get()) != X509_V_OK) {
      failed_ = true;
      throw TlsRefused("the peer showed no certificate of our CA");
    }
    peer_uris_ = uris_of(certificate);
    return Step::kDone;
  }
  try {
    return outcome(result, "shaking hands");
  } catch (const StreamBroken& error) {
    if (socket_.error != 0) {
      throw;
    }
    throw TlsRefused(error.what());
  }
}

Step TlsSession::recv(std::span<std::byte> into, std::size_t& got) {
  ERR_clear_error();
  const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &got);
  return result == 1 ? Step::kDone : outcome(result, "receiving");
}

Step TlsSession::send(std::span<const std::byte> from, std::size_t& sent) {
  ERR_clear_error();
  const int result = SSL_write_ex(ssl_.get(), from.data(), from.size(), &sent);
  return result == 1 ? Step::kDone : outcome(result, "sending");
}

void TlsSession::say_goodbye() noexcept {
  if (!failed_ && SSL_is_init_finished(ssl_.get()) == 1) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
}

std::string TlsSession::description() const {
  return std::string(SSL_get_version(ssl_.get())) + " " + SSL_get_cipher_name(ssl_.get());
}

Step TlsSession::outcome(int result, const char* during) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantsWrite;
    case SSL_ERROR_ZERO_RETURN:
      return Step::kEnded;
    case SSL_ERROR_SYSCALL:
      failed_ = true;
      if (socket_.ended) {
        return Step::kEnded;
      }
      throw StreamBroken(std::generic_category().message(socket_.error));
    default:
      failed_ = true;
      throw StreamBroken(std::string("TLS failed while ") + during + ": " + reason());
  }
}

// OpenSSL's reason for the last failure, and what is wrong with the peer's certificate if that is it.
std::string TlsSession::reason() const {
  const unsigned long code = ERR_peek_last_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  std::string reason = text == nullptr ? "no reason is known" : text;
  if (const long verdict = SSL_get_verify_result(ssl_.get()); verdict != X509_V_OK) {
    reason += std::string(" (") + X509_verify_cert_error_string(verdict) + ")";
  }
  ERR_clear_error();
  return reason;
}

}  // namespace flashboot
