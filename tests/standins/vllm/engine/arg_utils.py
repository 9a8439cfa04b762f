from dataclasses import dataclass


@dataclass
class AsyncEngineArgs:
    model: str
    max_model_len: int
    max_num_seqs: int
    dtype: str
    load_format: str
    trust_remote_code: bool
    enable_log_requests: bool
