#include "longspan/comm/store_client.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "longspan/comm/backend.h"
#include "longspan/comm/within.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatienceAfterSilence{2000};

}  // namespace

struct StoreClient::Impl {
  using Store = c10::intrusive_ptr<c10d::Store>;

  /// `question` owns what it uses: when the store is silent it is left behind with a thread.
  template <typename T>
  std::optional<T> ask(std::function<T(c10d::Store&)> question) {
    if (gone || Clock::now() < quiet_until) return std::nullopt;
    for (;;) {
      const bool was_connected = store.defined();
      try {
        using Answer = std::pair<Store, T>;
        const std::optional<Answer> answer = within<Answer>(
            was_silent ? std::min(patience, kPatienceAfterSilence) : patience,
            [store = store, where = where, prefix = prefix, patience = patience, question] {
              const Store asked = store ? store : connect_to_store(where, prefix, patience);
              return Answer(asked, question(*asked));
            });
        if (!answer) break;
        store = answer->first;
        was_silent = false;
        return answer->second;
      } catch (const StoreIsGone&) {
        gone = true;
        store.reset();
        return std::nullopt;
      } catch (const std::exception&) {  // the connection broke, or could not be made
        store.reset();
        if (!was_connected) break;
      }
    }
    // What was asked may still be answered on the connection that is left behind.
    store.reset();
    was_silent = true;
    quiet_until = Clock::now() + patience;
    return std::nullopt;
  }

  const Rendezvous where;
  const std::string prefix;
  const std::chrono::milliseconds patience;
  Store store;
  bool gone = false, was_silent = false;
  Clock::time_point quiet_until;
};

StoreClient::StoreClient(const Rendezvous& where, std::string prefix,
                         std::chrono::milliseconds patience)
    : impl_(new Impl{.where = where,
                     .prefix = std::move(prefix),
                     .patience = patience,
                     .store = {},
                     .gone = false,
                     .was_silent = false,
                     .quiet_until = {}}) {}

StoreClient::~StoreClient() = default;

bool StoreClient::is_gone() const { return impl_->gone; }

std::optional<int64_t> StoreClient::add(const std::string& key, int64_t amount) {
  return impl_->ask<int64_t>([=](c10d::Store& store) { return store.add(key, amount); });
}

std::optional<bool> StoreClient::has(const std::string& key) {
  return impl_->ask<bool>([=](c10d::Store& store) { return store.check({key}); });
}

bool StoreClient::put(const std::string& key, const std::string& text) {
  return impl_
      ->ask<bool>([=](c10d::Store& store) {
        put_text(store, key, text);
        return true;
      })
      .has_value();
}

bool StoreClient::remove(const std::string& key) {
  return impl_->ask<bool>([=](c10d::Store& store) { return store.deleteKey(key); }).has_value();
}

}  // namespace longspan
