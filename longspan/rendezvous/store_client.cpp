#include "longspan/rendezvous/store_client.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "longspan/rendezvous/own_connections.h"
#include "longspan/rendezvous/store.h"
#include "longspan/rendezvous/within.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatienceAfterSilence{2000};

/// A connection to the store, shared with a question's thread, which may hang in it.
class Line {
 public:
  Line(const Rendezvous& where, std::string prefix, std::chrono::milliseconds patience)
      : where_(where), prefix_(std::move(prefix)), patience_(patience) {}

  bool is_connected() const {
    const std::lock_guard lock(mutex_);
    return store_.defined();
  }

  /// Connects at the first call. One thread at a time. Throws as connect_to_store.
  c10d::Store& store() {
    if (!is_connected()) {
      Connections made;
      auto store = connect_to_store(where_, prefix_, patience_, &made);
      const std::lock_guard lock(mutex_);
      if (hung_up_) throw CommunicationError("nobody waits for the answer any more");
      store_ = std::move(store);
      connections_ = std::move(made);
    }
    return *store_;
  }

  /// Ends the question under way, now or once it has connected. Thread-safe.
  void hang_up() {
    const std::lock_guard lock(mutex_);
    hung_up_ = true;
    shut_down(connections_);
  }

 private:
  const Rendezvous where_;
  const std::string prefix_;
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_;
  Connections connections_;
  bool hung_up_ = false;
};

}  // namespace

struct StoreClient::Impl {
  /// `question` owns what it uses: where the store is silent, it is left behind with its thread.
  template <typename T>
  std::optional<T> ask(std::function<T(c10d::Store&)> question) {
    if (gone || Clock::now() < quiet_until || !left.expired()) return std::nullopt;
    for (;;) {
      if (!line) line = std::make_shared<Line>(where, prefix, patience);
      const bool was_connected = line->is_connected();
      try {
        const std::optional<T> answer =
            within<T>(was_silent ? std::min(patience, kPatienceAfterSilence) : patience,
                      [line = line, question] { return question(line->store()); });
        if (!answer) break;
        was_silent = false;
        return answer;
      } catch (const StoreIsGone&) {
        gone = true;
        line.reset();
        return std::nullopt;
      } catch (const std::exception&) {  // the connection broke, or could not be made
        line.reset();
        if (!was_connected) break;
      }
    }
    if (line) {
      line->hang_up();
      left = std::exchange(line, nullptr);
    }
    was_silent = true;
    quiet_until = Clock::now() + patience;
    return std::nullopt;
  }

  const Rendezvous where;
  const std::string prefix;
  const std::chrono::milliseconds patience;
  std::shared_ptr<Line> line;
  std::weak_ptr<Line> left;  // expires when the thread that was left behind has ended
  bool gone = false, was_silent = false;
  Clock::time_point quiet_until;
};

StoreClient::StoreClient(const Rendezvous& where, std::string prefix,
                         std::chrono::milliseconds patience)
    : impl_(new Impl{.where = where,
                     .prefix = std::move(prefix),
                     .patience = patience,
                     .line = {},
                     .left = {},
                     .gone = false,
                     .was_silent = false,
                     .quiet_until = {}}) {}

StoreClient::~StoreClient() = default;

bool StoreClient::is_gone() const { return impl_->gone; }

std::optional<int64_t> StoreClient::add(const std::string& key, int64_t amount) {
  return impl_->ask<int64_t>([=](c10d::Store& store) { return store.add(key, amount); });
}

std::optional<bool> StoreClient::has(const std::string& key) { return has_all({key}); }

std::optional<bool> StoreClient::has_all(const std::vector<std::string>& keys) {
  return impl_->ask<bool>([=](c10d::Store& store) { return store.check(keys); });
}

bool StoreClient::put(const std::string& key, const std::string& text) {
  return impl_
      ->ask<bool>([=](c10d::Store& store) {
        put_text(store, key, text);
        return true;
      })
      .has_value();
}

std::optional<std::string> StoreClient::text(const std::string& key) {
  return impl_->ask<std::string>([=](c10d::Store& store) { return text_at(store, key); });
}

bool StoreClient::remove(const std::string& key) {
  return impl_->ask<bool>([=](c10d::Store& store) { return store.deleteKey(key); }).has_value();
}

}  // namespace longspan
