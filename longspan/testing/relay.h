// A proxy in front of a server. A test can block the proxy.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <thread>
#include <vector>

namespace longspan::testing {

/// Listens on loopback and forwards bytes to another local port and back, for its lifetime. When
/// blocked, the relay accepts connections but forwards nothing.
class Relay {
 public:
  explicit Relay(int to_port) : to_port_(to_port), listener_(new_socket()) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, any, length) == 0 && listen(listener_, 64) == 0 &&
        getsockname(listener_, any, &length) == 0) {
      port_ = ntohs(address.sin_port);
    }
    thread_ = std::thread([this] { hand_on(); });
  }
  ~Relay() {
    ends_ = true;
    thread_.join();
    for (const auto& [from, to] : other_end_) close(from);
    close(listener_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// 0 if the system gave no port.
  int port() const { return port_; }
  void hold(bool held) { held_ = held; }
  /// Drops the `number`-th answer from now (counted from 1) together with its connection: the
  /// request has been served, but the client cannot know.
  void lose_an_answer(int number) { loses_in_ = number; }
  int num_lost() const { return num_lost_; }
  /// Bytes that the server has sent so far.
  int64_t num_answer_bytes() const { return num_answer_bytes_; }

 private:
  static int new_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void hand_on() {
    while (!ends_) {
      std::vector<pollfd> ready;
      if (!held_) {
        ready.push_back({listener_, POLLIN, 0});
        for (const auto& [from, to] : other_end_) ready.push_back({from, POLLIN, 0});
      }
      poll(ready.data(), ready.size(), /*timeout=*/10);
      if (held_) continue;  // blocked since the poll began
      for (const pollfd& one : ready) {
        if (one.revents == 0) continue;
        if (one.fd == listener_) {
          meet();
        } else if (other_end_.contains(one.fd)) {
          pass(one.fd);
        }
      }
    }
  }

  void meet() {
    const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), far = new_socket();
    const sockaddr_in address = loopback(to_port_);
    if (near >= 0 &&
        connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      far_ends_.insert(far);
      other_end_[near] = far;
      other_end_[far] = near;
      return;
    }
    if (near >= 0) close(near);
    close(far);
  }

  void pass(int from) {
    const int to = other_end_.at(from);
    char bytes[4096];
    const ssize_t size = recv(from, bytes, sizeof(bytes), 0);
    const bool lost = size > 0 && far_ends_.contains(from) && loses_in_ > 0 && --loses_in_ == 0;
    num_lost_ += lost ? 1 : 0;
    if (size > 0 && far_ends_.contains(from)) num_answer_bytes_ += size;
    if (size > 0 && !lost && send(to, bytes, static_cast<size_t>(size), MSG_NOSIGNAL) == size) {
      return;
    }
    for (const int end : {from, to}) {
      other_end_.erase(end);
      far_ends_.erase(end);
      close(end);
    }
  }

  const int to_port_, listener_;
  int port_ = 0;
  std::atomic<bool> held_ = false, ends_ = false;
  std::atomic<int> loses_in_ = 0, num_lost_ = 0;
  std::atomic<int64_t> num_answer_bytes_ = 0;
  std::map<int, int> other_end_;
  std::set<int> far_ends_;  // connections to the server
  std::thread thread_;
};

}  // namespace longspan::testing
