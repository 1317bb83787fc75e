"""The verifier: runs the target over token trees and keeps the path that the target itself would have produced."""
