// The owner of a folder's lock, as its lock file names it. No torch.
#pragma once

#include <optional>
#include <string>

#include "longspan/files/process_identity.h"

namespace longspan {

struct LockOwner {
  ProcessIdentity process;
  std::string since;  // "2026-01-31 12:00:00 UTC"
};

/// Returns this process as the owner of a lock, with the present time as the start.
LockOwner new_lock_owner();

/// Convert an owner to the file's text and back; nullopt for text that names no owner.
std::string text_of(const LockOwner& owner);
std::optional<LockOwner> lock_owner_from(const std::string& text);

}  // namespace longspan
