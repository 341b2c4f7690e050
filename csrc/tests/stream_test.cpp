// Streams, plain and under TLS: every way in which they end is told, in time, and no thread is left behind.
#include "stream.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <tuple>

#include "errors.hpp"
#include "rig.hpp"

namespace flashboot {
namespace {

using rig::kLong;
using rig::kShort;
using rig::pattern;
using rig::Task;

const std::string kAgent = "flashboot://agent/node-1";

// `text` in the message of what `work` throws.
template <typename Error>
void expect_throw(const std::function<void()>& work, const std::string& text) {
  try {
    work();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

struct StreamTest : ::testing::TestWithParam<bool> {
  StreamTest() {
    if (GetParam()) {
      Task server([&] { pair.parent->start_tls(authority.context(kAgent, true), std::nullopt, kLong); });
      pair.child->start_tls(authority.context("flashboot://agent/node-2", false), kAgent, kLong);
      server.result();
    }
  }
  std::size_t recv(Stream& stream, std::span<std::byte> into) { return stream.recv_into(into, kLong, kLong, "a test"); }
  void send(Stream& stream, std::span<const std::byte> head, std::span<const std::byte> tail) {
    stream.send(head, tail, kLong, kLong, "a test");
  }

  rig::Authority authority;
  rig::Pair pair;
  const std::vector<std::byte> data = pattern(3 << 20);
};

INSTANTIATE_TEST_SUITE_P(PlainAndTls, StreamTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

TEST_P(StreamTest, BytesArriveAsTheyWereSent) {
  Task sender([&] {
    send(*pair.parent, std::span(data).first(100), std::span(data).subspan(100));
    pair.parent->finish(kLong);
  });
  std::vector<std::byte> got(data.size());
  ASSERT_EQ(recv(*pair.child, got), got.size());
  EXPECT_EQ(got, data);
  EXPECT_EQ(recv(*pair.child, got), 0) << "the end of the stream";
  pair.child->close();
  sender.result();
}

TEST_P(StreamTest, AnEndInsideABufferIsTold) {
  send(*pair.parent, std::span(data).first(10), {});
  pair.parent->close();
  std::vector<std::byte> got(11);
  expect_throw<StreamBroken>([&] { recv(*pair.child, got); }, "ended after 10 of 11 bytes");
}

TEST_P(StreamTest, SilenceEndsInTime) {
  std::vector<std::byte> got(1);
  expect_throw<StreamTimeout>([&] { pair.child->recv_into(got, kShort, kLong, "a test"); }, "the parent: ");
  expect_throw<StreamTimeout>([&] { pair.child->recv_into(got, kLong, kShort, "a test"); }, ", a test");
}

TEST_P(StreamTest, APeerThatTakesNothingIsGivenUp) {
  expect_throw<StreamTimeout>([&] { pair.child->send({}, data, kShort, kLong, "a test"); }, "were not taken");
}

TEST_P(StreamTest, ClosingWakesReaderAndWriter) {
  Task reader([&] {  // both go on until they are stopped, wherever the close finds them
    std::vector<std::byte> got(1000);
    while (true) {
      recv(*pair.child, got);
    }
  });
  Task writer([&] {
    while (true) {
      send(*pair.parent, {}, data);
    }
  });
  pair.child->close();
  pair.child->close();
  expect_throw<StreamBroken>([&] { reader.result(); }, "closed on our side");
  EXPECT_THROW(writer.result(), StreamBroken);
  EXPECT_TRUE(pair.child->closed());
  EXPECT_TRUE(pair.child->peer_is_gone());
  expect_throw<StreamBroken>([&] { send(*pair.child, {}, data); }, "closed on our side");
}

TEST_P(StreamTest, AGonePeerIsNoticedBehindUnreadBytesAndRaisesNoSignal) {
  std::signal(SIGPIPE, SIG_DFL);
  EXPECT_FALSE(pair.parent->peer_is_gone());
  send(*pair.child, std::span(data).first(10), {});
  EXPECT_FALSE(pair.parent->peer_is_gone());
  pair.child->close();
  EXPECT_TRUE(pair.parent->peer_is_gone());
  EXPECT_THROW(send(*pair.parent, {}, data), StreamBroken);
}

TEST_P(StreamTest, TwoThreadsCannotReadAndWriteAtOnce) {
  Stream::Turn turn(*pair.child, "a test");
  EXPECT_THROW(send(*pair.child, {}, data), std::logic_error);
}

TEST_P(StreamTest, FinishGivesThePeerTheLastWord) {
  send(*pair.parent, std::span(data).first(1000), {});  // unread: closing at once would reset the connection
  Task finisher([&] {
    send(*pair.child, std::span(data).first(5), {});
    pair.child->finish(kLong);
  });
  std::vector<std::byte> got(5);
  EXPECT_EQ(recv(*pair.parent, got), 5);
  EXPECT_EQ(recv(*pair.parent, got), 0);
  pair.parent->close();
  finisher.result();
}

TEST(Stream, OnlyStreamSocketsAreTaken) {
  const rig::Record record;
  EXPECT_THROW(Stream(record.fd(), "nobody"), std::invalid_argument);
  EXPECT_THROW(Stream(-1, "nobody"), std::invalid_argument);
  const int datagrams = socket(AF_UNIX, SOCK_DGRAM, 0);
  EXPECT_THROW(Stream(datagrams, "nobody"), std::invalid_argument);
  close(datagrams);
}

struct TlsTest : ::testing::Test {
  // What each side threw; null when it did not.
  std::exception_ptr server_failure;
  std::exception_ptr client_failure;

  void shake(std::shared_ptr<TlsContext> server, std::shared_ptr<TlsContext> client,
             const std::optional<std::string>& wanted = std::nullopt) {
    Task task([&] { pair.parent->start_tls(std::move(server), std::nullopt, kLong); });
    try {
      pair.child->start_tls(std::move(client), wanted, kLong);
    } catch (...) {
      client_failure = std::current_exception();
      pair.child->finish(Duration::zero());
    }
    try {
      task.result();
    } catch (...) {
      server_failure = std::current_exception();
    }
  }
  static void rethrow(const std::exception_ptr& failure) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  rig::Authority ours;
  rig::Authority theirs;
  rig::Pair pair;
};

TEST_F(TlsTest, BothSidesLearnWhoThePeerIs) {
  shake(ours.context(kAgent, true), ours.context("flashboot://operator", false), kAgent);
  ASSERT_FALSE(client_failure);
  ASSERT_FALSE(server_failure);
  EXPECT_EQ(pair.child->peer_uris(), std::vector{kAgent});
  EXPECT_EQ(pair.parent->peer_uris(), std::vector<std::string>{"flashboot://operator"});
  EXPECT_EQ(pair.child->tls(), "TLSv1.3 TLS_AES_128_GCM_SHA256");
}

TEST_F(TlsTest, AServerOfAnotherCaIsRefused) {
  shake(theirs.context(kAgent, true, ours), ours.context(kAgent, false));
  expect_throw<TlsRefused>([&] { rethrow(client_failure); }, "certificate verify failed");
  EXPECT_TRUE(server_failure);
}

TEST_F(TlsTest, AClientOfAnotherCaIsRefusedAndLearnsWhy) {
  shake(ours.context(kAgent, true), theirs.context(kAgent, false, ours));
  expect_throw<TlsRefused>([&] { rethrow(server_failure); }, "certificate verify failed");
  pair.parent->finish(Duration::zero());
  std::vector<std::byte> got(1);
  expect_throw<StreamBroken>([&] { pair.child->recv_into(got, kLong, kLong, "a test"); }, "alert");
}

TEST_F(TlsTest, AnotherNameIsRefusedAndNothingGoesOverTheStream) {
  shake(ours.context(kAgent, true), ours.context(kAgent, false), kAgent + "0");
  expect_throw<TlsRefused>([&] { rethrow(client_failure); }, "not of " + kAgent + "0 but of " + kAgent);
}

TEST_F(TlsTest, AfterARefusalNothingGoesOverTheStream) {
  Task server([&] { pair.parent->start_tls(theirs.context(kAgent, true, ours), std::nullopt, kLong); });
  EXPECT_THROW(pair.child->start_tls(ours.context(kAgent, false), std::nullopt, kLong), TlsRefused);
  const auto data = pattern(10);
  expect_throw<StreamBroken>([&] { pair.child->send(data, {}, kLong, kLong, "a test"); }, "never came to TLS");
  pair.child->close();
  EXPECT_THROW(server.result(), std::exception);
}

TEST_F(TlsTest, APlainPeerIsRefusedAndASilentOneIsGivenUp) {
  const auto data = pattern(100);
  pair.parent->send(data, {}, kLong, kLong, "a test");
  EXPECT_THROW(pair.child->start_tls(ours.context(kAgent, false), std::nullopt, kLong), TlsRefused);
  rig::Pair silent;
  EXPECT_THROW(silent.child->start_tls(ours.context(kAgent, false), std::nullopt, kShort), StreamTimeout);
}

// A client of OpenSSL's own, as anybody may come: without a certificate, or with an old protocol.
void refused_client(const rig::Authority& authority, Stream& server, int fd, int version) {
  Task client([fd, version] {
    const std::unique_ptr<SSL_CTX, SslDeleter> context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(context.get(), version);
    const std::unique_ptr<SSL, SslDeleter> ssl(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), fd);
    char byte;
    if (SSL_connect(ssl.get()) == 1 && SSL_read(ssl.get(), &byte, 1) == 1) {
      throw std::runtime_error("the server let it in");
    }
    close(fd);
  });
  EXPECT_THROW(server.start_tls(authority.context(kAgent, true), std::nullopt, kLong), TlsRefused);
  server.close();
  EXPECT_NO_THROW(client.result());
}

TEST_F(TlsTest, AClientWithoutACertificateIsRefused) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's own client
  const auto [fd, other] = rig::socket_pair();
  Stream server(other, "the client");
  refused_client(ours, server, fd, TLS1_3_VERSION);
}

TEST_F(TlsTest, AnOlderProtocolIsRefused) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto [fd, other] = rig::socket_pair();
  Stream server(other, "the client");
  refused_client(ours, server, fd, TLS1_2_VERSION);
}

TEST_F(TlsTest, AContextNamesThePartThatIsWrong) {
  // No structured bindings: clang 14 lets no lambda capture them.
  const auto issued = ours.issue(kAgent);
  const auto issued_again = ours.issue(kAgent);
  const std::string& certificate = std::get<0>(issued);
  const std::string& key = std::get<1>(issued);
  const std::string& other = std::get<0>(issued_again);
  const std::string& other_key = std::get<1>(issued_again);
  const std::string ca = ours.pem();
  expect_throw<std::invalid_argument>([&] { TlsContext(key, key, ca, true); }, "the certificate");
  expect_throw<std::invalid_argument>([&] { TlsContext(certificate, certificate, ca, true); }, "the key");
  expect_throw<std::invalid_argument>([&] { TlsContext(certificate, other_key, ca, true); }, "not the certificate's");
  expect_throw<std::invalid_argument>([&] { TlsContext(certificate, key, "", true); }, "the CA");
  expect_throw<std::invalid_argument>([&] { TlsContext(certificate, key, key, true); }, "the CA");
  EXPECT_NO_THROW(TlsContext(certificate + other, key, ca + theirs.pem(), true));
}

}  // namespace
}  // namespace flashboot
