// One connection to a node's agent, as long as all goes well: a hello, and one answer with its descriptors.
//
// What always holds: no wait is longer than it was asked to be; `stop`, from any thread, ends each of them; a descriptor
// that came is handed on once or closed here. Whatever else happens, there is no answer, nothing stays open, and
// Python asks again, with patience and in words (engine/conversation.py).
#pragma once

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashboot {

class AgentQuestion {
 public:
  static constexpr std::size_t kMostMessage = 65536;
  static constexpr std::size_t kMostDescriptors = 4;

  struct Answer {
    std::string packet;
    std::vector<int> descriptors;  // the caller's
  };

  AgentQuestion() = default;
  ~AgentQuestion();
  AgentQuestion(const AgentQuestion&) = delete;
  AgentQuestion& operator=(const AgentQuestion&) = delete;
  AgentQuestion(AgentQuestion&&) = delete;
  AgentQuestion& operator=(AgentQuestion&&) = delete;

  [[nodiscard]] std::optional<Answer> ask(const std::string& path, std::string_view hello,
                                          std::chrono::milliseconds patience);
  // Without waiting. False, and the connection ends, when the agent does not take it.
  bool tell(std::string_view message);
  // Until the agent says something, the connection ends, or `patience` is over; false in the last case.
  [[nodiscard]] bool wait(std::chrono::milliseconds patience) const;
  // The connection, to look at; -1 when there is none.
  [[nodiscard]] int descriptor() const;
  // The connection, whose owner is the caller now; -1 when there is none.
  [[nodiscard]] int hand_over();
  void stop();
  [[nodiscard]] bool stopped() const;

 private:
  [[nodiscard]] bool connect(const std::string& path);
  [[nodiscard]] std::optional<Answer> receive() const;
  void drop();

  mutable std::mutex mutex_;  // of which descriptor it is, and whether it is still wanted; never held while waiting
  int socket_ = -1;
  bool stopped_ = false;
};

}  // namespace flashboot
