// A small HTTP server for tests, in a thread.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace longspan {

/// Answers each connection's request with the bytes that `respond` returns for it.
class TinyServer {
 public:
  explicit TinyServer(std::function<std::string(const std::string&)> respond)
      : respond_(std::move(respond)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 16) != 0) {
      throw std::runtime_error("no socket for a test");
    }
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url = fmt::format("http://127.0.0.1:{}/path", ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~TinyServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& one : connections_) one.join();
    ::close(listener_);
  }

  std::string url;
  std::atomic<int> most_open = 0;

 private:
  /// Reads the head and, by its Content-Length, the body.
  static std::string request_from(int connection) {
    std::string request;
    for (size_t size = 1; request.size() < size;) {
      char part[1 << 16];
      const ssize_t read = ::recv(connection, part, sizeof(part), 0);
      if (read <= 0) return request;
      request.append(part, static_cast<size_t>(read));
      const size_t head = request.find("\r\n\r\n");
      size = head == std::string::npos ? request.size() + 1 : head + 4 + length_in(request);
    }
    return request;
  }
  static size_t length_in(std::string head) {
    std::ranges::transform(head, head.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t at = head.find("content-length: ");
    return at == std::string::npos ? 0 : std::stoul(head.substr(at + 16));
  }

  void serve() {
    for (int one = 0; (one = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      connections_.emplace_back([this, one] {
        const int open = ++open_;
        for (int most = most_open; open > most && !most_open.compare_exchange_weak(most, open);) {
        }
        const std::string answer = respond_(request_from(one));
        --open_;  // before the answer, after which the client may send its next request
        ::send(one, answer.data(), answer.size(), MSG_NOSIGNAL);
        ::shutdown(one, SHUT_RDWR);
        ::close(one);
      });
    }
  }

  std::function<std::string(const std::string&)> respond_;
  int listener_;
  std::atomic<int> open_ = 0;
  std::vector<std::thread> connections_;
  std::thread thread_;
};

inline std::string with_status(const std::string& status, const std::string& body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     body.size(), body);
}

}  // namespace longspan
