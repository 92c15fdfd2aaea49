// Sessions and rows as objects of Python (torch.ScriptObject).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/python_config.h"
#include "bindings/python_events.h"
#include "bindings/registration.h"
#include "bindings/session_pictures.h"
#include "longspan/session/session.h"

namespace longspan {

/// A loss written in Python: the address of a ctypes.CFUNCTYPE, which takes Python's lock itself.
/// The function reads its input and sets its result through operators. Returns 0, or another number
/// after an exception of Python.
using PythonLoss = int (*)();

/// A session that Python holds. The members are called by one thread at a time.
class SessionOfPython final : public torch::CustomClassHolder {
 public:
  /// `listener`: see PythonSink. `port`: see rendezvous_at(). `has_pictures`: rows may have
  /// pictures. Throws as Session does.
  SessionOfPython(const std::string& file, const std::vector<std::string>& overrides,
                  int64_t listener, int64_t port, bool has_pictures);
  ~SessionOfPython() override;

  /// Calls a function that is collective or part of collective work, and rethrows its exceptions
  /// for Python. The caller's autocast, no_grad and current GPU have no effect on the function. If
  /// the function fails on this rank alone, the other ranks are told, and the session is closed.
  template <typename Function>
  auto call(const Function& function) -> decltype(function(std::declval<Session&>())) {
    using Result = decltype(function(std::declval<Session&>()));
    const c10::AutoGradMode gradients(true);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return for_python([&] {
      const c10::DeviceGuard device(open().device());
      if constexpr (std::is_void_v<Result>) {
        guarded(function);
      } else {
        std::optional<Result> result;
        guarded([&](Session& session) { result.emplace(function(session)); });
        return std::move(*result);
      }
    });
  }
  /// Throws UserError if the session is closed.
  Session& open();
  /// Null in a session of rows without pictures.
  const SessionPictures* pictures() const { return pictures_.get(); }
  /// Ends the connections. Collective if `why` is empty. Otherwise `why` is a failure of this rank:
  /// tells the other ranks, and is not collective. No-op for a closed session.
  void close(const std::string& why);

  RowLosses forward_backward(Session& session, const std::vector<Row>& rows, PythonLoss loss,
                             bool reads_hidden_states, bool whole_row);
  /// The input of the running call of the loss. Throws UserError outside such a call.
  const LossInput& input() const;
  void take_loss(const at::Tensor& loss);

 private:
  void guarded(const std::function<void(Session&)>& function);

  PythonSink sink_;
  int world_size_ = 1;
  std::unique_ptr<Session> session_;
  std::unique_ptr<const SessionPictures> pictures_;
  std::string why_closed_ = "it was closed";
  const LossInput* input_ = nullptr;
  at::Tensor loss_;
};

using SessionPointer = c10::intrusive_ptr<SessionOfPython>;

/// A row of one session. Parts of the session must outlive the row's use, so no other session may
/// use the row.
class RowOfPython final : public torch::CustomClassHolder {
 public:
  RowOfPython(const SessionPointer& session, Row made, std::vector<HeldPixels> pictures)
      : session_(session), row_(std::move(made)), held_(std::move(pictures)) {}
  /// Throws UserError unless `session` made the row.
  const Row& of(const SessionPointer& session) const;

 private:
  c10::weak_intrusive_ptr<SessionOfPython> session_;
  Row row_;
  std::vector<HeldPixels> held_;
};

using RowPointer = c10::intrusive_ptr<RowOfPython>;

}  // namespace longspan
