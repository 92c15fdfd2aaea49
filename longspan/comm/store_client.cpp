#include "longspan/comm/store_client.h"

#include <exception>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "longspan/comm/backend.h"
#include "longspan/comm/within.h"

namespace longspan {

struct StoreClient::Impl {
  using Store = c10::intrusive_ptr<c10d::Store>;

  /// `question` owns what it uses: when the store is silent it is left behind with a thread.
  template <typename T>
  std::optional<T> ask(std::function<T(c10d::Store&)> question) {
    if (gone) return std::nullopt;
    try {
      if (!store) store = connect_to_store(where, prefix, patience);
      std::optional<T> answer = within<T>(
          patience, [store = store, question = std::move(question)] { return question(*store); });
      if (!answer) give_up();
      return answer;
    } catch (const std::exception&) {
      look_again();
      return std::nullopt;
    }
  }

  /// After a connection could not be made, or broke.
  void look_again() {
    const bool was_connected = store.defined();
    store.reset();
    try {
      if (was_connected) store = connect_to_store(where, prefix, patience);
      gone = !was_connected;
    } catch (const std::exception&) {
      give_up();
    }
  }

  void give_up() {
    gone = true;
    store.reset();
  }

  const Rendezvous where;
  const std::string prefix;
  const std::chrono::milliseconds patience;
  Store store;
  bool gone = false;
};

StoreClient::StoreClient(const Rendezvous& where, std::string prefix,
                         std::chrono::milliseconds patience)
    : impl_(new Impl{.where = where,
                     .prefix = std::move(prefix),
                     .patience = patience,
                     .store = {},
                     .gone = false}) {}

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
