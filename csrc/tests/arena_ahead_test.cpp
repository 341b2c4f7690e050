// Asking an agent and taking its arena, as tests/unit/test_ahead.py has it, here under sanitizers.
#include "arena_ahead.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "agent_offer.hpp"
#include "agent_question.hpp"
#include "errors.hpp"
#include "layout_bytes.hpp"
#include "layout_document.hpp"

namespace flashboot {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kIdentity = R"({"model":"m"})";
constexpr std::string_view kHead =
    R"({"arenaBytes":4096,"attributes":[{}],"deleted":[],"identity":{"model":"m"},"scalars":[],)"
    R"("segments":[[0,4096]],"structure":null})";

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string document_of(std::string_view head, const std::string& tables) {
  std::string rest;
  put(rest, head.size(), 4);
  put(rest, tables.size(), 4);
  rest += head;
  rest += tables;
  std::string all = "FBLAYOUT";
  put(all, kLayoutVersion, 4);
  put(all, crc32_of(bytes_of(rest)), 4);
  return all + rest;
}

std::string offer_of(const std::string& document) {
  return R"({"type":"ready","arena":"arena-1","bytes":4096,"identity":"i","digest":"d","layoutDigest":")" +
         document_digest(bytes_of(document)) + "\"}";
}

int memory_of(const std::string& content, off_t size) {
  const int descriptor = memfd_create("test", MFD_CLOEXEC);
  EXPECT_EQ(write(descriptor, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  EXPECT_EQ(ftruncate(descriptor, size), 0);
  return descriptor;
}

bool is_open(int descriptor) { return lseek(descriptor, 0, SEEK_CUR) >= 0; }

TEST(LayoutDocument, TheChecksumIsZlibs) {
  EXPECT_EQ(crc32_of(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32_of({}), 0U);
}

TEST(LayoutDocument, EveryCutIsTold) {
  const std::string whole = document_of(kHead, Document().bytes());
  const LayoutDocument parts(bytes_of(whole));
  EXPECT_EQ(parts.head, kHead);
  EXPECT_EQ(parts.tables.size(), Document().bytes().size());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    EXPECT_THROW((void)LayoutDocument(bytes_of(cut)), Malformed) << size;
  }
}

TEST(LayoutDocument, OnlyTheOneHeadOfPlainTensorsIsKnown) {
  EXPECT_EQ(plain_arena_bytes(kHead, kIdentity), 4096U);
  EXPECT_FALSE(plain_arena_bytes(kHead, "{}"));
  for (std::size_t size = 0; size < kHead.size(); ++size) {
    EXPECT_FALSE(plain_arena_bytes(kHead.substr(0, size), kIdentity)) << size;
  }
  for (const char* number : {"0", "04096", "+4096", "-1", "4097", "99999999999999999999", ""}) {
    std::string head(kHead);
    head.replace(head.find("4096"), 4, number);
    EXPECT_FALSE(plain_arena_bytes(head, kIdentity)) << number;
  }
}

TEST(ArenaAhead, TakesWhatFitsAndItsDescriptors) {
  const std::string document = document_of(kHead, Document().bytes());
  const std::vector<int> descriptors{memory_of("", 4096), memory_of(document, static_cast<off_t>(document.size()))};
  ArenaAhead arena;
  ASSERT_TRUE(arena.take(offer_of(document), descriptors, kIdentity));
  EXPECT_EQ(arena.offer().arena, "arena-1");
  EXPECT_EQ(arena.names().text, "a.w");
  EXPECT_EQ(arena.document(), document);
  EXPECT_EQ(arena.tensors(), nullptr);
  const int held = arena.hand_over();
  EXPECT_TRUE(is_open(held));
  EXPECT_EQ(arena.hand_over(), -1);
  (void)close(held);
  for (const int descriptor : descriptors) {
    EXPECT_FALSE(descriptor != held && is_open(descriptor));
  }
}

TEST(ArenaAhead, LeavesWhatDoesNotFit) {
  const std::string document = document_of(kHead, Document().bytes());
  std::string damaged = document;
  damaged.back() = '\xff';
  const auto taken = [](const std::string& packet, const std::string& content, off_t arena_bytes, int more = 0) {
    std::vector<int> descriptors{memory_of("", arena_bytes), memory_of(content, static_cast<off_t>(content.size()))};
    for (int i = 0; i < more; ++i) {
      descriptors.push_back(memory_of("", 0));
    }
    ArenaAhead arena;
    const bool took = arena.take(packet, descriptors, kIdentity);
    for (const int descriptor : descriptors) {
      EXPECT_NE(took, is_open(descriptor));
      if (!took) {
        (void)close(descriptor);
      }
    }
    return took;
  };
  EXPECT_TRUE(taken(offer_of(document), document, 4096));
  EXPECT_FALSE(taken(offer_of(document), document, 4095));
  EXPECT_FALSE(taken(offer_of(document), document, 4096, 1));
  EXPECT_FALSE(taken(offer_of(damaged), damaged, 4096));
  EXPECT_FALSE(taken(offer_of(document), damaged, 4096));
  EXPECT_FALSE(taken(offer_of(document).substr(1), document, 4096));
  Document runtime;
  runtime.columns[10] = {1, {2}};
  const std::string other = document_of(kHead, runtime.bytes());
  EXPECT_FALSE(taken(offer_of(other), other, 4096));
}

TEST(AgentOffer, IsReadyAndNothingElse) {
  const std::string sound = offer_of("");
  ASSERT_TRUE(read_offer(sound));
  EXPECT_EQ(read_offer(sound)->bytes, 4096U);
  for (std::size_t size = 0; size < sound.size(); ++size) {
    EXPECT_FALSE(read_offer(sound.substr(0, size))) << size;
  }
  for (const char* odd : {"[]", "{}", R"({"type":"ready"})", R"({"type":"seed","arena":"a"})", "\xff"}) {
    EXPECT_FALSE(read_offer(odd)) << odd;
  }
}

class Listener {
 public:
  Listener() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = std::string(folder_.data()) + "/s";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, path_.size());
    descriptor_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(descriptor_, 4), 0);
  }
  ~Listener() {
    (void)close(descriptor_);
    (void)unlink(path_.c_str());
    (void)rmdir(folder_.data());
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  Listener(Listener&&) = delete;
  Listener& operator=(Listener&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int accepted() const { return accept(descriptor_, nullptr, nullptr); }

 private:
  std::array<char, 32> folder_{"/tmp/flashboot-XXXXXX"};
  std::string path_;
  int descriptor_;
};

std::string heard(int connection) {
  std::string text(100, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(recv(connection, text.data(), text.size(), 0), 0)));
  return text;
}

TEST(AgentQuestion, BringsOneAnswerAndKeepsTheConnection) {
  const Listener listener;
  std::string said;
  std::string later;
  std::thread agent([&] {
    const int connection = listener.accepted();
    said = heard(connection);
    (void)send(connection, "yes", 3, 0);
    later = heard(connection);
    (void)close(connection);
  });
  AgentQuestion question;
  const auto answer = question.ask(listener.path(), "hello", milliseconds(20000));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->packet, "yes");
  EXPECT_TRUE(answer->descriptors.empty());
  EXPECT_FALSE(question.wait(milliseconds(1)));
  EXPECT_TRUE(question.tell("attached"));
  EXPECT_TRUE(question.wait(milliseconds(20000)));
  agent.join();
  EXPECT_EQ(said, "hello");
  EXPECT_EQ(later, "attached");
  EXPECT_FALSE(question.tell("again"));
}

TEST(AgentQuestion, EndsWhenNobodyAnswersOrWantsToKnow) {
  const Listener listener;
  EXPECT_FALSE(AgentQuestion().ask(listener.path(), "hello", milliseconds(1)));
  EXPECT_FALSE(AgentQuestion().ask(listener.path() + "x", "hello", milliseconds(20000)));
  AgentQuestion question;
  std::thread other([&] {
    const int first = listener.accepted();
    const int second = listener.accepted();
    (void)heard(second);
    question.stop();
    EXPECT_EQ(heard(second), "");
    (void)close(first);
    (void)close(second);
  });
  EXPECT_FALSE(question.ask(listener.path(), "hello", milliseconds(60000)));
  other.join();
  EXPECT_FALSE(question.ask(listener.path(), "hello", milliseconds(60000)));
  EXPECT_EQ(question.hand_over(), -1);
}

}  // namespace
}  // namespace flashboot
