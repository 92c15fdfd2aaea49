// Who holds a folder's lock, as the lock file says it. No torch.
#pragma once

#include <optional>
#include <string>

#include "longspan/checkpoint/process_identity.h"

namespace longspan {

struct LockOwner {
  ProcessIdentity process;
  std::string since;  // "2026-01-31 12:00:00 UTC"
};

/// This process, since now.
LockOwner new_lock_owner();

/// As the file says it, and back; nullopt for text that names no owner.
std::string text_of(const LockOwner& owner);
std::optional<LockOwner> lock_owner_from(const std::string& text);

}  // namespace longspan
