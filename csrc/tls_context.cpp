// Certificates, keys and CAs into an SSL_CTX.
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <stdexcept>
#include <string>

#include "tls.hpp"

namespace flashboot {
namespace {

struct Deleter {
  void operator()(BIO* bio) const noexcept { BIO_free(bio); }
  void operator()(X509* certificate) const noexcept { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

// Bytes that OpenSSL may read ahead of us: several records come with one system call instead of two calls for each.
constexpr std::size_t kReadAhead = 64 << 10;

[[noreturn]] void refuse(const std::string& what) {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  throw std::invalid_argument(reason == nullptr ? what : what + ": " + reason);
}

Owned<BIO> reader(std::string_view pem, const char* name) {
  if (pem.size() > (1 << 20)) {
    refuse(std::string("the ") + name + " has more than 1 MiB");
  }
  Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  if (!bio) {
    throw std::bad_alloc();
  }
  return bio;
}

// For keys with a password: there is nobody to ask, and OpenSSL's own way is to ask at the terminal.
int no_password(char*, int, int, void*) { return -1; }

// All certificates of `pem`; throws when there is none, or rubbish among them.
std::vector<Owned<X509>> certificates(std::string_view pem, const char* name) {
  const Owned<BIO> bio = reader(pem, name);
  std::vector<Owned<X509>> found;
  while (Owned<X509> each{PEM_read_bio_X509(bio.get(), nullptr, &no_password, nullptr)}) {
    found.push_back(std::move(each));
  }
  const unsigned long code = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  if (found.empty() || !at_end) {
    refuse(std::string("the ") + name + " can't be used: it is no PEM of certificates");
  }
  ERR_clear_error();
  return found;
}

void set_protocol(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  // AES-128 first: the fastest where the CPU has AES, and strong enough.
  if (SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") !=
      1) {
    refuse("this OpenSSL has none of the ciphers of TLS 1.3");
  }
  // A stream that ends without a goodbye is told apart by the frames on it: they say their lengths.
  SSL_CTX_set_options(context,
                      SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);  // connections live long; nobody resumes one
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

}  // namespace

TlsContext::TlsContext(std::string_view certificate, std::string_view key, std::string_view ca, bool server)
    : context_(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method())), server_(server) {
  if (!context_) {
    throw std::bad_alloc();
  }
  ERR_clear_error();
  SSL_CTX* context = context_.get();
  set_protocol(context);
  const auto chain = certificates(certificate, "certificate");
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    refuse("the certificate can't be used");
  }
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      refuse("the certificate's chain can't be used");
    }
  }
  const Owned<BIO> key_reader = reader(key, "key");
  const Owned<EVP_PKEY> secret(PEM_read_bio_PrivateKey(key_reader.get(), nullptr, &no_password, nullptr));
  if (!secret) {
    refuse("the key can't be used: it is no PEM of a private key without a password");
  }
  if (SSL_CTX_use_PrivateKey(context, secret.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    refuse("the key is not the certificate's");
  }
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  for (const auto& each : certificates(ca, "CA")) {
    if (X509_STORE_add_cert(store, each.get()) != 1) {
      refuse("the CA can't be used");
    }
    if (server && SSL_CTX_add_client_CA(context, each.get()) != 1) {
      refuse("the CA can't be used");
    }
  }
}

}  // namespace flashboot
