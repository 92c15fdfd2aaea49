/* C interface of the Rust archive. */
#pragma once
