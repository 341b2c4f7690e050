// What several tests need: arenas with marks, connected streams, certificates made on the spot.
#pragma once

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "digest.hpp"
#include "marks.hpp"
#include "stream.hpp"
#include "tls.hpp"

namespace flashboot::rig {

inline constexpr Duration kLong = std::chrono::seconds(20);  // never reached by a test that passes
inline constexpr Duration kShort = std::chrono::milliseconds(30);

class Record {
 public:
  Record() : fd_(memfd_create("record", MFD_CLOEXEC)) {
    if (fd_ < 0 || ftruncate(fd_, 8192) != 0) {
      throw std::runtime_error("no memfd");
    }
  }
  ~Record() { close(fd_); }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

// Bytes without a period of a leaf or a chunk, so that bytes at a wrong place show.
inline std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::byte& each : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    each = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

struct Arena {
  Arena(std::vector<std::byte> bytes, std::vector<Bounds> lanes)
      : memory(std::move(bytes)), digests(chunk_count(memory.size(), kDigestChunk) * 8),
        marks(std::make_shared<Marks>(record.fd(), memory.size(), std::move(lanes))) {
    chunk_digests(memory, kDigestChunk, 1, digests.data());
  }
  explicit Arena(std::vector<std::byte> bytes) : Arena(bytes, {{0, bytes.size()}}) {}

  Record record;
  std::vector<std::byte> memory;
  std::vector<std::byte> digests;
  std::shared_ptr<Marks> marks;
};

inline std::pair<int, int> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("no socket pair");
  }
  return {ends[0], ends[1]};
}

struct Pair {
  Pair() {
    const auto [a, b] = socket_pair();
    child = std::make_shared<Stream>(a, "the parent");
    parent = std::make_shared<Stream>(b, "the child");
  }
  std::shared_ptr<Stream> child;   // the end that the child holds
  std::shared_ptr<Stream> parent;  // the end that the parent holds
};

// Runs something in a thread; `result` waits for it and throws what it threw.
class Task {
 public:
  explicit Task(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          try {
            work();
          } catch (...) {
            failure_ = std::current_exception();
          }
        }) {}
  ~Task() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  void result() {
    thread_.join();
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses what is above
};

// A CA, and certificates under it.
class Authority {
 public:
  Authority() : key_(EVP_EC_gen("P-256")), certificate_(make(key_, key_, nullptr, "CA:TRUE", "")) {}
  ~Authority() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  [[nodiscard]] std::string pem() const { return text(certificate_); }

  // Certificate and key, PEM.
  [[nodiscard]] std::pair<std::string, std::string> issue(const std::string& uri) const {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = make(key, key_, certificate_, "CA:FALSE", uri);
    std::pair<std::string, std::string> made{text(certificate), text(key)};
    X509_free(certificate);
    EVP_PKEY_free(key);
    return made;
  }

  // A context for a certificate of ours, that believes `whom`.
  [[nodiscard]] std::shared_ptr<TlsContext> context(const std::string& uri, bool server, const Authority& whom) const {
    const auto [certificate, key] = issue(uri);
    return std::make_shared<TlsContext>(certificate, key, whom.pem(), server);
  }
  [[nodiscard]] std::shared_ptr<TlsContext> context(const std::string& uri, bool server) const {
    return context(uri, server, *this);
  }

 private:
  static X509* make(EVP_PKEY* key, EVP_PKEY* signer, X509* issuer, const std::string& basic, const std::string& uri) {
    static std::atomic<long> serial{1};  // tests issue from several threads
    X509* made = X509_new();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), serial++);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), 86400);
    X509_set_pubkey(made, key);
    X509_NAME* name = X509_get_subject_name(made);
    const auto* common = reinterpret_cast<const unsigned char*>(issuer == nullptr ? "ca" : "node");
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, common, -1, -1, 0);
    X509_set_issuer_name(made, issuer == nullptr ? name : X509_get_subject_name(issuer));
    extend(made, NID_basic_constraints, basic);
    if (!uri.empty()) {
      extend(made, NID_subject_alt_name, "URI:" + uri);
    }
    X509_sign(made, signer, EVP_sha256());
    return made;
  }

  static void extend(X509* certificate, int kind, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  template <typename T>
  static std::string text(T* object) {
    BIO* bio = BIO_new(BIO_s_mem());
    if constexpr (std::is_same_v<T, X509>) {
      PEM_write_bio_X509(bio, object);
    } else {
      PEM_write_bio_PrivateKey(bio, object, nullptr, nullptr, 0, nullptr, nullptr);
    }
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    std::string made(data, static_cast<std::size_t>(size));
    BIO_free(bio);
    return made;
  }

  EVP_PKEY* key_;
  X509* certificate_;
};

}  // namespace flashboot::rig
